"""The public operator: check the inputs, resolve the horizon, call the registered operator (library.py)."""

from typing import Literal, overload

import torch
from torch import Tensor

from cosformer.ops import library
from cosformer.ops.checks import (
    check_causal,
    check_horizon,
    check_inputs,
    check_key_mask,
    check_no_tangents,
    check_offsets,
    check_options,
    check_state,
    check_step,
    check_tensors,
)
from cosformer.ops.features import lower_for_autocast
from cosformer.ops.packed import sequence_lengths
from cosformer.ops.state import AttentionState


@overload
def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., horizon: int | None = ..., key_mask: Tensor | None = ...,
    cu_seqlens: Tensor | None = ..., cu_seqlens_k: Tensor | None = ..., state: AttentionState | None = ...,
    return_state: Literal[False] = ..., feature_map: str = ..., normalize: bool = ..., eps: float = ...,
    backend: str = ...,
) -> Tensor: ...  # fmt: skip


@overload
def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., horizon: int | None = ..., key_mask: Tensor | None = ...,
    cu_seqlens: Tensor | None = ..., cu_seqlens_k: Tensor | None = ..., state: AttentionState | None = ...,
    return_state: Literal[True], feature_map: str = ..., normalize: bool = ..., eps: float = ..., backend: str = ...,
) -> tuple[Tensor, AttentionState]: ...  # fmt: skip


def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, horizon: int | None = None,
    key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
    state: AttentionState | None = None, return_state: bool = False, feature_map: str = "relu", normalize: bool = True,
    eps: float = 1e-6, backend: str = "auto",
) -> Tensor | tuple[Tensor, AttentionState]:  # fmt: skip
    """o[t] = Σ_s w[t,s] v[s] / Σ_s w[t,s],  w[t,s] = φ(q[t])·φ(k[s])·cos(π(t−s)/(2M)),  in time linear in T and S.

    q [B,H,T,K]; k [B,Hkv,S,K]; v [B,Hkv,S,V]; o [B,H,T,V]. H is a multiple of Hkv: query head h reads key head
    h // (H/Hkv). Any strides. Inputs and output share one dtype; sums are fp32 (fp64 for fp64).

    causal        only s <= t; with T < S the queries are the last T of S positions.
    horizon       M >= T and S (plus what the state holds). None: max(T, S), or the state's. Fix it where a prefix must
                  keep its outputs when the sequence grows.
    key_mask      [B, S] bool, True where a key counts. Masked keys vanish, whatever they hold.
    cu_seqlens    [N+1] offsets of sequences packed into one row (B = 1); cu_seqlens_k where keys are packed
                  differently. Positions and states restart at each.
    state         what came before position 0; return_state: also return what comes after the last key. One row per
                  sequence.
    feature_map   φ: relu (the paper's), identity, leaky_relu, elu1, silu.
    normalize     False leaves out the denominator. A denominator |z| < eps counts as eps: rows without weight give 0.
    backend       auto, cpu (compiled), triton, torch. `cosformer env` tells what auto takes here and why.
    """
    check_options(feature_map, backend, eps)
    check_tensors(q, k, v)
    check_no_tangents(q, k, v)
    q, k, v = lower_for_autocast(q, k, v)
    check_inputs(q, k, v)
    check_key_mask(key_mask, k)
    check_offsets(cu_seqlens, cu_seqlens_k, q)
    (b, _, t, _), s = q.shape, k.shape[2]
    if cu_seqlens is None:
        check_causal(causal, t, s)
    if cu_seqlens is not None and cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens
    if state is not None:
        check_state(state, b if cu_seqlens is None else cu_seqlens.shape[0] - 1, k, v, horizon)
        horizon = state.horizon
    elif return_state and horizon is None:
        raise ValueError(
            "return_state=True needs a horizon: a horizon that follows the length would change every earlier output; "
            "pass horizon= the longest sequence you will ever continue to"
        )
    past = state.length if state is not None else 0
    if cu_seqlens is None and isinstance(past, (int, torch.SymInt)):
        check_horizon(horizon, max(t, s), past)
        horizon = max(t, s) if horizon is None else horizon
    else:  # lengths are values of a tensor: the operator looks at them when it runs
        check_horizon(horizon, 1, 0)
        past = torch.as_tensor(past, dtype=torch.int64) if state is not None else 0
    o, _, sums, norm = torch.ops.cosformer.attention(
        q, k, v, key_mask, cu_seqlens, cu_seqlens_k, state.sums if state is not None else None,
        state.norm if state is not None else None, past if isinstance(past, Tensor) else None, causal,
        horizon or 0, feature_map, normalize, eps, return_state, backend,
    )  # fmt: skip
    if not return_state:
        return o
    assert horizon is not None
    length = (s if cu_seqlens_k is None else sequence_lengths(cu_seqlens_k)) + past
    return o, AttentionState(sums=sums, norm=norm, length=length, horizon=horizon)


def attention_step(
    q: Tensor, k: Tensor, v: Tensor, state: AttentionState, *, key_mask: Tensor | None = None,
    feature_map: str = "relu", normalize: bool = True, eps: float = 1e-6, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """One token of generation: updates `state` in place and returns o [B,H,1,V]. Costs the same at every position.

    q [B,H,1,K]; k, v [B,Hkv,1,*]. For gradients use `cosformer_attention(..., causal=True, state=, return_state=True)`.
    """
    q, k, v = lower_for_autocast(q, k, v)
    check_step(q, k, v, state, key_mask, feature_map, backend, eps)
    tensors = (q, k, v, state.sums, state.norm)
    if torch.is_grad_enabled() and any([x.requires_grad for x in tensors]):  # noqa: C419  (a list is quicker)
        raise RuntimeError(
            "attention_step updates its state in place and records no gradient: run it under torch.no_grad(), or use "
            "cosformer_attention(..., causal=True, state=state, return_state=True)"
        )
    past = state.length
    if not (isinstance(past, Tensor) and torch.compiler.is_compiling()):
        check_horizon(state.horizon, 1, int(past.max()) if isinstance(past, Tensor) else past)
    else:
        torch.ops.aten._assert_async.msg((past < state.horizon).all(), "a state is full: its horizon is reached")
    arguments = (key_mask, state.horizon, feature_map, normalize, eps, backend)
    if _is_plain(tensors):  # the dispatcher's toll would double the cost of a step
        o = library.step(*tensors, *arguments)
        torch.autograd.graph.increment_version((state.sums, state.norm))
    else:
        o = torch.ops.cosformer.step(*tensors, *arguments)
    state.length = past + 1
    return o


def _is_plain(tensors: tuple[Tensor, ...]) -> bool:
    """Ordinary tensors with memory of their own, and nobody watching: no compiler, tracer, transform, dispatch mode."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    for x in tensors:  # no generator: this runs at every token
        if type(x) is not Tensor or x.is_neg():
            return False
    transformed = torch._C._functorch.maybe_current_level() is not None  # pyright: ignore[reportAttributeAccessIssue]
    return not transformed and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
