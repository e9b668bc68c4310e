"""The quadratic definition. Every other form is tested against this one, in float64; it imports no kernel.

w[t,s] = φ(q[t])·φ(k[s]) · cos(θ(t − s)),   θ = π/(2M)
o[t]   = Σ_s w[t,s] v[s] / Σ_s w[t,s]       causal: only s <= t
"""

import torch
from torch import Tensor

from cosformer.ops.checks import check_causal, check_horizon, check_inputs, check_options, check_tensors
from cosformer.ops.features import FEATURE_MAPS, angle, clamp_norm, no_autocast, sum_dtype


def attention_weights(
    q: Tensor, k: Tensor, *, causal: bool = False, horizon: int | None = None, attn_mask: Tensor | None = None,
    feature_map: str = "relu", normalize: bool = True, eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """The weights [B, H, T, S] themselves: O(T·S) time and memory.

    q [B,H,T,K]; k [B,Hkv,S,K], H a multiple of Hkv. `attn_mask`: bool, broadcastable to [B,H,T,S], True keeps.
    Causal queries are the last T of S positions. Sums in fp32 (fp64 for fp64 input).
    """
    _check(q, k, k, causal, horizon, attn_mask, feature_map, eps)
    with no_autocast(q):
        w, _ = _weights(q, k, causal, horizon, attn_mask, feature_map)
        return w / clamp_norm(w.sum(-1, keepdim=True), eps) if normalize else w


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, horizon: int | None = None,
    attn_mask: Tensor | None = None, feature_map: str = "relu", normalize: bool = True, eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """o [B,H,T,V] from the weights of `attention_weights` and v [B,Hkv,S,V], in the dtype of q."""
    _check(q, k, v, causal, horizon, attn_mask, feature_map, eps)
    with no_autocast(q):
        w, seen = _weights(q, k, causal, horizon, attn_mask, feature_map)
        o = w @ torch.where(seen, _repeat(v.to(w.dtype), q), 0)
        return (o / clamp_norm(w.sum(-1, keepdim=True), eps) if normalize else o).to(q.dtype)


def _check(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, horizon: int | None, attn_mask: Tensor | None, feature_map: str,
    eps: float,
) -> None:  # fmt: skip
    check_options(feature_map, "auto", eps)
    check_tensors(q, k, v)
    check_inputs(q, k, v)
    check_causal(causal, q.shape[2], k.shape[2])
    check_horizon(horizon, max(q.shape[2], k.shape[2]), 0)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        raise TypeError(f"attn_mask is {attn_mask.dtype}: it must be bool, True where a query sees a key")


def _weights(
    q: Tensor, k: Tensor, causal: bool, horizon: int | None, attn_mask: Tensor | None, feature_map: str
) -> tuple[Tensor, Tensor]:
    """w [B, H, T, S] and which keys any query sees, [..., S, 1]. Keys nobody sees vanish, whatever they hold."""
    t, s, dtype = q.shape[2], k.shape[2], sum_dtype(q.dtype)
    theta = angle(horizon if horizon is not None else max(t, s))
    at_q = torch.arange(t, device=q.device)[:, None] + (s - t if causal else 0)  # [T, 1]
    at_k = torch.arange(s, device=q.device)  # [S]
    keep = at_k <= at_q if causal else torch.ones_like(at_k <= at_q)
    if attn_mask is not None:
        keep = keep & attn_mask
    seen = keep.any(-2)[..., None]
    phi = FEATURE_MAPS[feature_map]
    phi_q, phi_k = phi(q.to(dtype)), phi(torch.where(seen, _repeat(k.to(dtype), q), 0))
    w = phi_q @ phi_k.mT * torch.cos(theta * (at_q - at_k).to(dtype))
    return torch.where(keep, w, 0), seen


def _repeat(x: Tensor, q: Tensor) -> Tensor:
    """One copy of each key/value head for every query head that reads it."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)
