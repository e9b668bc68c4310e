"""Attentions that need places: each sequence whole, from its first token, whatever padding or packing there was."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from cosformer.models.kinds import AttentionKind
from cosformer.models.layout import Layout


class WholeSequenceKind(AttentionKind):
    """A derived class attends `over` rows whose real tokens come first; packed sequences come one at a time."""

    across_too = False

    def over(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        """o [B,H,T,V] for q [B,H,T,K], k and v [B,Hkv,T,*]; real [B,T] is True for the first tokens of each row."""
        raise NotImplementedError(f"{type(self).__name__} attends over nothing")

    def attend_whole(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if layout.offsets is not None:
            bounds = itertools.pairwise(layout.offsets.tolist())
            return torch.cat([self.over(q[:, :, i:j], k[:, :, i:j], v[:, :, i:j], None) for i, j in bounds], 2)
        if layout.key_mask is None:
            return self.over(q, k, v, None)
        order, back, real = real_first(layout.key_mask)
        k, v = (x.masked_fill(~layout.key_mask[:, None, :, None], 0) for x in (k, v))  # padding may hold anything
        o = self.over(reordered(q, order), reordered(k, order), reordered(v, order), real)
        return reordered(o, back)


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
