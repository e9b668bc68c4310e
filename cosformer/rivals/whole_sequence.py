"""Attentions that need places: each sequence whole, from its first token, whatever padding or packing there was."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from cosformer.models.kinds import KINDS, AttentionKind
from cosformer.models.layout import Layout


class WholeSequenceKind(AttentionKind):
    """A derived class attends `over` rows whose real tokens come first; packed sequences come one at a time."""

    across_too = False

    def over(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        """o [B,H,T,V] for q [B,H,T,K], k and v [B,Hkv,T,*]; real [B,T] is True for the first tokens of each row."""
        raise NotImplementedError(f"{type(self).__name__} attends over nothing")

    def attend_whole(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        bounds = None
        if layout.offsets is not None:
            refuse_to_trace_packed(f"attention={registered_name(type(self))!r}")
            bounds = list(itertools.pairwise(layout.offsets.tolist()))
        return over_sequences(self.over, (q, k, v), layout.key_mask, bounds)


def over_sequences(
    over: Callable[..., Tensor], tensors: tuple[Tensor, ...], mask: Tensor | None, bounds: list[tuple[int, int]] | None
) -> Tensor:
    """over(*tensors, real) for tensors [B,H,T,*] with real tokens first; o in the caller's order.

    mask [B,T]: True where a token is real. What o has in place of the others means nothing. bounds: where each
    sequence of a packed row begins and ends.
    """
    if bounds is not None:
        pieces = [
            over_sequences(over, tuple(x[:, :, i:j] for x in tensors), None if mask is None else mask[:, i:j], None)
            for i, j in bounds
        ]
        return torch.cat(pieces, 2)
    if mask is None:
        return over(*tensors, None)
    order, back, real = real_first(mask)
    return reordered(over(*(brought_forward(x, mask, order) for x in tensors), real), back)


def brought_forward(x: Tensor, mask: Tensor, order: Tensor) -> Tensor:
    """x [B,H,T,K] in `order`, 0 where the mask [B,T] is False: padding may hold anything, NaN too."""
    return reordered(x.masked_fill(~mask[:, None, :, None], 0), order)


def real_first(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For mask [B,T]: the order [B,T] that puts real tokens first, the way back, and the mask in that order."""
    order = mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    return order, order.argsort(1), mask.gather(1, order)


def reordered(x: Tensor, order: Tensor) -> Tensor:
    """x [B,H,T,K] with its tokens in the order [B,T]."""
    return x.gather(2, order[:, None, :, None].expand_as(x))


def for_each_head(x: Tensor, heads: int) -> Tensor:
    """Key/value heads [B,Hkv,S,K], a copy for every query head that reads one."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def refuse_to_trace_packed(what: str) -> None:
    """In place of torch's own error, which speaks of guards on data-dependent expressions."""
    if torch.compiler.is_compiling():
        raise NotImplementedError(
            f"{what} with cu_seqlens cannot be compiled or exported: shapes follow the lengths of the sequences, which "
            "a graph cannot know; pad the sequences instead, or do not compile"
        )


def registered_name(kind: type[AttentionKind]) -> str:
    return next((name for name, known in KINDS.items() if known is kind), kind.__name__)
