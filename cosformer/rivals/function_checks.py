"""Refuses what the functions of the rivals cannot compute: what, got, why, fix. Kinds are checked with their config."""

from __future__ import annotations

import itertools

from torch import Tensor

from cosformer.ops.checks import check_inputs, check_key_mask, check_offsets, check_tensors
from cosformer.ops.features import lower_for_autocast
from cosformer.ops.packed import read_offsets
from cosformer.rivals.whole_sequence import refuse_to_trace_packed


def check_sequences(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None, *, places: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as autocast wants them. places: why queries and keys must be the same tokens; None: they need not."""
    check_tensors(q, k, v)
    q, k, v = lower_for_autocast(q, k, v)
    check_inputs(q, k, v)
    check_key_mask(key_mask, k)
    check_offsets(cu_seqlens, None, q)
    if places is not None and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q has T={q.shape[2]} positions but k has S={k.shape[2]}: {places}, so queries and keys must be of the "
            "same tokens; pass all of them"
        )
    return q, k, v


def sequence_bounds(cu_seqlens: Tensor | None, x: Tensor, function: str) -> list[tuple[int, int]] | None:
    """Where each sequence packed into x [1,H,total,*] begins and ends; None: rows are not packed."""
    if cu_seqlens is None:
        return None
    refuse_to_trace_packed(function)
    return list(itertools.pairwise(read_offsets("cu_seqlens", cu_seqlens, x.shape[2])))


def refuse_causal(causal: bool, attention: str, why: str) -> None:
    if causal:
        raise ValueError(f"causal=True, but {attention} cannot be causal: {why}; leave it False")


def check_weight(name: str, x: Tensor, shape: str, like: Tensor) -> None:
    """Something drawn or learned, of as many dimensions as `shape` names."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"{name} is {getattr(x, 'dtype', type(x).__name__)}: pass a floating-point tensor {shape}")
    if x.dim() != shape.count(",") + 1 or 0 in x.shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: it is {shape}, none of them 0")
    if x.device != like.device:
        raise ValueError(f"{name} is on {x.device} but the inputs are on {like.device}: move it there")


def check_width(name: str, width: int, **heads: Tensor) -> None:
    """Of vectors that are multiplied with heads [...,K]."""
    for head, x in heads.items():
        if x.shape[-1] != width:
            raise ValueError(f"{name} is for heads of width K={width}, but {head} has {x.shape[-1]}: make it as wide")
