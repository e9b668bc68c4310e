"""Refuses what the operator cannot compute, before anything runs: what, got, why, fix."""

import torch
from torch import Tensor

from cosformer.ops.features import FEATURE_MAPS, sum_dtype
from cosformer.ops.problem import BACKENDS
from cosformer.ops.state import AttentionState

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_options(feature_map: str, backend: str, eps: float) -> None:
    if feature_map not in FEATURE_MAPS:
        raise ValueError(f"feature_map={feature_map!r} is unknown: use one of {', '.join(FEATURE_MAPS)}")
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown: use one of {', '.join(BACKENDS)}")
    if not isinstance(eps, (int, float)) or not torch.finfo(torch.float32).tiny <= eps < float("inf"):
        raise ValueError(
            f"eps={eps!r}: rows without weight divide by it, in fp32; use a number such as 1e-6 (at least 1.2e-38)"
        )


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}: pass a torch.Tensor of shape [B, H, T, K]")
        if x.layout != torch.strided or x.is_nested:
            raise TypeError(
                f"{name} is {'nested' if x.is_nested else x.layout}: attention reads dense tensors; convert it"
            )
        if x.dim() != 4:
            raise ValueError(
                f"{name} has {x.dim()} dimensions, shape {tuple(x.shape)}: the layout is [B, H, T, K], as in "
                "F.scaled_dot_product_attention; use x.view(B, T, H, K).transpose(1, 2)"
            )
        if x.dtype not in FLOATS:
            raise TypeError(
                f"{name} is {x.dtype}: attention needs float32, float64, bfloat16 or float16; use {name}.float()"
            )


def check_joined(qkv: Tensor, heads: int) -> None:
    """What must hold before q, k and v can be told apart."""
    if not isinstance(qkv, Tensor):
        raise TypeError(f"qkv is a {type(qkv).__name__}: pass a torch.Tensor of shape [B, T, H + 2·Hkv, K]")
    if qkv.dim() != 4:
        raise ValueError(
            f"qkv has {qkv.dim()} dimensions, shape {tuple(qkv.shape)}: the layout is [B, T, H + 2·Hkv, K]; use "
            "x.unflatten(-1, (-1, K))"
        )
    shared = qkv.shape[2] - heads
    if heads < 1 or shared < 2 or shared % 2:
        raise ValueError(
            f"qkv has {qkv.shape[2]} heads, {heads} of them queries: as many keys as values must follow; pass "
            "H + 2·Hkv heads, and H as `heads`"
        )


def check_no_tangents(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Forward-mode derivatives would silently be zero: torch.library has no rule for them."""
    if torch.compiler.is_compiling() or torch.autograd.forward_ad._current_level < 0:
        return
    if any(torch.autograd.forward_ad.unpack_dual(x).tangent is not None for x in (q, k, v)):
        raise NotImplementedError(
            "forward-mode derivatives (torch.func.jvp, dual tensors) are not supported: use reverse mode, or "
            "cosformer.attention_reference, which is quadratic"
        )


def check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(
            f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}: one dtype is needed; convert them or use torch.autocast"
        )
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k, v are on {q.device}, {k.device}, {v.device}: move them to one device")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q, k, v have batch sizes {q.shape[0]}, {k.shape[0]}, {v.shape[0]}: B must agree")
    if k.shape[1] != v.shape[1]:
        raise ValueError(f"k has {k.shape[1]} heads but v has {v.shape[1]}: keys and values come in pairs")
    if k.shape[2] != v.shape[2]:
        raise ValueError(f"k has S={k.shape[2]} positions but v has {v.shape[2]}: keys and values come in pairs")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"q has width K={q.shape[3]} but k has {k.shape[3]}: queries meet keys in one space")
    for name, size in (("B", q.shape[0]), ("H", q.shape[1]), ("Hkv", k.shape[1]), ("T", q.shape[2]), ("S", k.shape[2]),
                       ("K", q.shape[3]), ("V", v.shape[3])):  # fmt: skip
        if size == 0:
            raise ValueError(
                f"{name}=0 in q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: nothing to attend; "
                "skip the call for empty input"
            )
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q has {q.shape[1]} heads, k and v have {k.shape[1]}: each key head serves equally many query heads, "
            "so the first must be a multiple of the second"
        )


def check_key_mask(key_mask: Tensor | None, k: Tensor) -> None:
    if key_mask is None:
        return
    if not isinstance(key_mask, Tensor):
        raise TypeError(f"key_mask is a {type(key_mask).__name__}: pass a bool tensor [B, S], True where a key counts")
    if key_mask.dtype != torch.bool:
        raise TypeError(f"key_mask is {key_mask.dtype}: it must be bool, True where a key counts; use key_mask.bool()")
    if key_mask.shape != (k.shape[0], k.shape[2]):
        hint = ""
        if key_mask.dim() > 2:
            hint = (
                ". A mask that differs by query cannot be had in linear time: cosformer.attention_reference takes one"
            )
        raise ValueError(
            f"key_mask has shape {tuple(key_mask.shape)} but k has [B, S] = {[k.shape[0], k.shape[2]]}: "
            f"one entry per key{hint}"
        )
    if key_mask.device != k.device:
        raise ValueError(f"key_mask is on {key_mask.device} but k is on {k.device}: move it there")


def check_offsets(cu_q: Tensor | None, cu_k: Tensor | None, q: Tensor) -> None:
    """What the shapes can tell; the values are read where the operator runs (packed.py)."""
    if cu_k is not None and cu_q is None:
        raise ValueError("cu_seqlens_k was passed without cu_seqlens: queries need offsets too; pass both")
    for name, cu in (("cu_seqlens", cu_q), ("cu_seqlens_k", cu_k)):
        if cu is None:
            continue
        if not isinstance(cu, Tensor):
            raise TypeError(f"{name} is a {type(cu).__name__}: pass a tensor of offsets, torch.tensor([0, ...])")
        if cu.device.type == "meta" and q.device.type != "meta":
            raise ValueError(f"{name} is on meta: its values must be readable; make it on the CPU or on {q.device}")
        if cu.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} is {cu.dtype}: offsets are int32 or int64")
        if cu.dim() != 1 or cu.shape[0] < 2:
            raise ValueError(
                f"{name} has shape {tuple(cu.shape)}: expected [N + 1] offsets for N >= 1 sequences, 0 first"
            )
    if cu_q is not None and q.shape[0] != 1:
        raise ValueError(
            f"cu_seqlens with B={q.shape[0]}: packed sequences lie one after another in a single row; "
            "pass q, k, v as [1, H, total, K]"
        )


def check_causal(causal: bool, t: int, s: int) -> None:
    if causal and t > s:
        raise ValueError(
            f"causal=True but T={t} > S={s}: the queries are the last T of S positions, so T must not exceed S; "
            "pass the missing keys, or what came before as `state`"
        )


def check_horizon(horizon: int | None, length: int, past: int) -> None:
    """`length` positions now, after `past` in the state."""
    # a message is made only to be raised: printing a symbolic size would pin it
    if horizon is None:
        return
    if isinstance(horizon, bool) or not isinstance(horizon, (int, torch.SymInt)):
        raise TypeError(f"horizon={horizon!r} is a {type(horizon).__name__}: it counts tokens; pass an int or None")
    if horizon < 1:
        raise ValueError(f"horizon={horizon}: it counts tokens, so it must be positive (at least {length + past} here)")
    if horizon < length + past:
        held = f" after {past} held by the state" if past else ""
        raise ValueError(
            f"horizon={horizon} but the longest sequence has {length} positions{held}: weights past the horizon turn "
            f"negative; pass horizon>={length + past}"
        )


def check_state(state: AttentionState, batch: int, k: Tensor, v: Tensor, horizon: int | None) -> None:
    if not isinstance(state, AttentionState):
        raise TypeError(f"state is a {type(state).__name__}: pass the AttentionState of an earlier call, or None")
    if isinstance(state.horizon, bool) or not isinstance(state.horizon, (int, torch.SymInt)) or state.horizon < 1:
        raise ValueError(f"state.horizon={state.horizon!r}: a state is made for one positive horizon; give it one")
    if isinstance(state.length, Tensor):
        if state.length.shape != (batch,) or state.length.is_floating_point():
            raise ValueError(
                f"state.length has shape {tuple(state.length.shape)}, {state.length.dtype}: "
                f"one whole number is needed for each of {batch} rows"
            )
    elif isinstance(state.length, bool) or not isinstance(state.length, (int, torch.SymInt)) or state.length < 0:
        raise ValueError(f"state.length={state.length!r}: it counts positions; use 0 or more")
    shape = (batch, k.shape[1], 2, k.shape[3], v.shape[3])
    if tuple(state.sums.shape) != shape or tuple(state.norm.shape) != shape[:4]:
        raise ValueError(
            f"state has sums {tuple(state.sums.shape)} and norm {tuple(state.norm.shape)}, but these inputs need "
            f"[B, Hkv, 2, K, V] = {shape}: a state continues the same heads and widths it was made with"
        )
    if state.sums.dtype != sum_dtype(k.dtype) or state.norm.dtype != state.sums.dtype:
        raise TypeError(
            f"state is {state.sums.dtype} but sums for {k.dtype} inputs are kept in {sum_dtype(k.dtype)}: "
            "make the state from inputs of this dtype, or convert state.sums and state.norm"
        )
    if not state.sums.device == state.norm.device == k.device:
        raise ValueError(
            f"state is on {state.sums.device} (norm: {state.norm.device}) but k is on {k.device}: "
            f"use state.to('{k.device}')"
        )
    if horizon is not None and horizon != state.horizon:
        raise ValueError(
            f"horizon={horizon} but the state was made with horizon={state.horizon}: its phases cannot change speed; "
            "pass the same horizon, or None to take the state's"
        )


_steps_checked: set[tuple] = set()


def check_step(
    q: Tensor, k: Tensor, v: Tensor, state: AttentionState, key_mask: Tensor | None, feature_map: str, backend: str,
    eps: float,
) -> None:  # fmt: skip
    """All of the above for one token. A combination of shapes that passed once is not examined at every token."""
    if not isinstance(state, AttentionState):
        raise TypeError(f"state is a {type(state).__name__}: pass an AttentionState, such as AttentionState.zeros(...)")
    if not (state.sums.is_contiguous() and state.norm.is_contiguous()):
        raise ValueError("attention_step updates a contiguous state in place: a view needs state.clone() first")
    seen = None
    if not torch.compiler.is_compiling():
        sums, norm = state.sums, state.norm
        seen = (
            q.shape, q.dtype, q.device, k.shape, k.dtype, k.device, v.shape, v.dtype, v.device, sums.shape, sums.dtype,
            sums.device, norm.shape, norm.dtype, norm.device, type(state.length), state.horizon, feature_map, backend,
            eps, None if key_mask is None else (key_mask.shape, key_mask.dtype, key_mask.device),
        )  # fmt: skip
        if seen in _steps_checked:
            return
    check_options(feature_map, backend, eps)
    check_tensors(q, k, v)
    check_inputs(q, k, v)
    check_key_mask(key_mask, k)
    check_state(state, q.shape[0], k, v, None)
    if q.shape[2] != 1 or k.shape[2] != 1:
        raise ValueError(
            f"attention_step takes one token, got T={q.shape[2]}, S={k.shape[2]}: "
            "use cosformer_attention(..., causal=True, state=state, return_state=True) for several"
        )
    if seen is not None and len(_steps_checked) < 1024:
        _steps_checked.add(seen)
