"""Attention by features alone, o[t] = Σ_s φ(q[t])·φ(k[s]) v[s] / Σ_s φ(q[t])·φ(k[s]), on our own kernels."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, overload

from torch import Tensor
from transformers.cache_utils import Cache

from cosformer.models.cache import STATE_LAYER_TYPE
from cosformer.models.layout import Layout
from cosformer.ops.attention import attention_step, cosformer_attention
from cosformer.ops.features import clamp_norm, no_autocast
from cosformer.ops.state import AttentionState
from cosformer.rivals.linear_positions import PositionedKind
from cosformer.rivals.states import NO_TURN, state_layer, wants_gradient

WIDEST = 256
"""Features that the GPU kernels take; with more, plain torch operations run there."""
EPS = 1e-30
"""Sums below count as this. Far lower than the operator's own: products of small features are no empty rows."""


@overload
def feature_attention(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, *, causal: bool = ..., key_mask: Tensor | None = ...,
    cu_seqlens: Tensor | None = ..., state: AttentionState | None = ..., return_state: Literal[False] = ...,
    eps: float = ..., backend: str = ...,
) -> Tensor: ...  # fmt: skip


@overload
def feature_attention(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, *, causal: bool = ..., key_mask: Tensor | None = ...,
    cu_seqlens: Tensor | None = ..., state: AttentionState | None = ..., return_state: Literal[True],
    eps: float = ..., backend: str = ...,
) -> tuple[Tensor, AttentionState]: ...  # fmt: skip


def feature_attention(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None, state: AttentionState | None = None, return_state: bool = False,
    eps: float = EPS, backend: str = "auto",
) -> Tensor | tuple[Tensor, AttentionState]:  # fmt: skip
    """o [B,H,T,V] for features phi_q [B,H,T,F] and phi_k [B,Hkv,S,F] and v [B,Hkv,S,V], in linear time.

    Everything else as in `cosformer_attention`; there is no horizon.
    """
    options: dict[str, Any] = {
        "causal": causal, "horizon": NO_TURN, "key_mask": key_mask, "cu_seqlens": cu_seqlens, "state": state,
        "feature_map": "identity", "eps": eps, "backend": backend,
    }  # fmt: skip
    with no_autocast(phi_q):  # features are made in the dtype they need
        if return_state:
            return cosformer_attention(phi_q, phi_k, v, return_state=True, **options)
        return cosformer_attention(phi_q, phi_k, v, **options)


def read_state(phi_q: Tensor, state: AttentionState, *, eps: float = EPS) -> Tensor:
    """o [B,H,T,V]: what queries get from a state that does not turn, nothing added."""
    sums, norm = state.sums[:, :, 0], state.norm[:, :, 0]  # [B, Hkv, F, V], [B, Hkv, F]
    with no_autocast(phi_q):
        grouped = phi_q.unflatten(1, (sums.shape[1], -1)).to(sums.dtype)  # [B, Hkv, G, T, F]
        o, z = grouped @ sums[:, :, None], grouped @ norm[:, :, None, :, None]
        return (o / clamp_norm(z, eps)).flatten(1, 2).to(phi_q.dtype)


class FeatureKind(PositionedKind):
    """A kind that is its features: a derived class says what φ(q) and φ(k) are. The cache is a state of fixed size."""

    layer_type = STATE_LAYER_TYPE
    eps: ClassVar[float] = EPS

    def features(
        self, q: Tensor, k: Tensor | None, layout: Layout, keys: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """φ(q) [B,H,T,F] and φ(k) [B,Hkv,S,F] (None for None), in a dtype that holds them; keys [B,S]: the real."""
        raise NotImplementedError(f"{type(self).__name__} has no features")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        q, k = self.positions.coded(q, k, layout)
        phi_q, phi_k = self.features(q, k, layout, layout.key_mask)
        assert phi_k is not None
        phi_v = v.to(phi_k.dtype)
        if self.positions.rotates:
            return self.attend_rotated(phi_q, phi_k, phi_v, layout, cache, eps=self.eps).to(v.dtype)
        if cache is None:
            o = feature_attention(
                phi_q,
                phi_k,
                phi_v,
                causal=self.causal,
                key_mask=layout.key_mask,
                cu_seqlens=layout.offsets,
                eps=self.eps,
            )
            return o.to(v.dtype)
        past = state_layer(cache, self.layer)
        if q.shape[2] == 1 and not wants_gradient(phi_q, phi_k, v):
            if not past.is_initialized:
                past.lazy_initialization(phi_k, phi_v)
            o = attention_step(
                phi_q,
                phi_k,
                phi_v,
                past.state(NO_TURN),
                key_mask=layout.key_mask,
                feature_map="identity",
                eps=self.eps,
            )
        else:
            before = past.state(NO_TURN) if past.is_initialized else None
            o, after = feature_attention(
                phi_q,
                phi_k,
                phi_v,
                causal=True,
                key_mask=layout.key_mask,
                state=before,
                return_state=True,
                eps=self.eps,
            )
            past.keep(after)
        past.advance(q.shape[2])
        return o.to(v.dtype)

    def attend_across(self, q: Tensor, kv: tuple[Tensor, Tensor] | None, layout: Layout, cache: Cache | None) -> Tensor:
        past = state_layer(cache, self.layer) if cache is not None else None
        if kv is None:
            assert past is not None
            phi_q, _ = self.features(q, None, layout, None)
            o = read_state(phi_q, past.state(NO_TURN), eps=self.eps)
        else:
            k, v = kv
            phi_q, phi_k = self.features(q, k, layout, layout.encoder_mask)
            assert phi_k is not None
            o, state = feature_attention(
                phi_q,
                phi_k,
                v.to(phi_k.dtype),
                key_mask=layout.encoder_mask,
                return_state=True,
                eps=self.eps,
            )
            if past is not None:
                past.keep(state)
        if past is not None:
            past.advance(q.shape[2])
        return o.to(q.dtype)
