"""attention="sparse": the Sparse Transformer (Child et al. 2019): softmax over a strided or fixed pattern of places.

strided: the last `stride` places, and every place a multiple of `stride` away.
fixed: the places of the same block of `stride`, and the last `summary` places of every block.

Each is two regular parts. Their scores are formed apart and normalised together, so that nothing quadratic is made:
with a stride near √T time and memory are O(T√T).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import Cost, make_options, register_attention
from cosformer.models.layout import Layout
from cosformer.models.softmax_kind import key_value_bytes, pair_flops
from cosformer.ops.features import no_autocast, sum_dtype
from cosformer.rivals.flex import check_path, takes_flex
from cosformer.rivals.function_checks import check_sequences, sequence_bounds
from cosformer.rivals.sparse_flex import fixed_by_flex, strided_by_flex
from cosformer.rivals.whole_sequence import WholeSequenceKind, for_each_head, over_sequences

Pattern = Literal["strided", "fixed"]


def sparse_mask(at_q: Tensor, at_k: Tensor, *, pattern: Pattern, stride: int, summary: int = 1, causal: bool) -> Tensor:
    """The pattern itself: bool [..., T, S] for places at_q [..., T] and at_k [..., S]."""
    t, s = at_q[..., :, None], at_k[..., None, :]
    if pattern == "strided":
        seen = ((t - s).abs() < stride) | ((t - s) % stride == 0)
    else:
        seen = (t // stride == s // stride) | (s % stride >= stride - summary)
    return seen & (s <= t) if causal else seen


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None, pattern: Pattern = "strided", stride: int = 128, summary: int | None = None,
    path: str = "auto",
) -> Tensor:  # fmt: skip
    """softmax(QKᵀ/√K)V over `sparse_mask`, places being those among real tokens. q [B,H,T,K]; k, v [B,Hkv,T,*].

    key_mask and cu_seqlens as in `cosformer_attention`; what a masked token gets means nothing. summary None: 8, or
    the stride if that is less. path: gather (plain torch), flex (FlexAttention), or auto: flex on CUDA, else gather.
    Both do O(T√T) work.
    """
    told = {"pattern": pattern, "stride": stride, "summary": summary, "path": path}
    options: SparseOptions = make_options(SparseOptions, told)
    q, k, v = check_sequences(q, k, v, key_mask, cu_seqlens, places="a pattern of places is that of one sequence")
    over = functools.partial(
        sparse_over, causal=causal, pattern=pattern, stride=stride, summary=options.summarised, path=path
    )
    return over_sequences(over, (q, k, v), key_mask, sequence_bounds(cu_seqlens, q, "sparse_attention"))


def sparse_over(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, *, causal: bool, pattern: Pattern, stride: int, summary: int,
    path: str,
) -> Tensor:  # fmt: skip
    """The same for rows whose real tokens come first: real [B,T]."""
    if takes_flex(path, q):
        lengths = torch.full((1,), q.shape[2], device=q.device) if real is None else real.sum(1)
        lengths = lengths.expand(q.shape[0])
        if pattern == "strided":
            return strided_by_flex(q, k, v, lengths, stride=stride, causal=causal)
        return fixed_by_flex(q, k, v, lengths, stride=stride, summary=summary, causal=causal)
    h, t = q.shape[1:3]
    if real is None:
        real = torch.ones(1, t, dtype=torch.bool, device=q.device)
    k, v, fill = for_each_head(k, h), for_each_head(v, h), -t % stride
    q, k, v = (F.pad(x, (0, 0, 0, fill)).unflatten(2, (-1, stride)) for x in (q, k, v))  # [B, H, N, C, *]
    real = F.pad(real, (0, fill)).unflatten(1, (-1, stride))[:, None]  # [B or 1, 1, N, C]
    parts = _strided(k, v, real, causal) if pattern == "strided" else _fixed(k, v, real, causal, summary)
    dtype = sum_dtype(q.dtype)
    with no_autocast(q):
        scaled, scores = q * q.shape[-1] ** -0.5, []
        for keys, _, seen, across in parts:
            found = (_turned(_turned(scaled) @ keys.mT) if across else scaled @ keys.mT).to(dtype)  # [B, H, N, C, *]
            scores.append(found.masked_fill(~seen, torch.finfo(dtype).min))
        weights = torch.cat(scores, -1).softmax(-1).to(v.dtype).split([x.shape[-1] for x in scores], -1)
        o = 0
        for w, (_, values, _, across) in zip(weights, parts, strict=True):
            o = o + (_turned(_turned(w) @ values) if across else w @ values)
    assert isinstance(o, Tensor)
    return o.flatten(2, 3)[:, :, :t]


Part = tuple[Tensor, Tensor, Tensor, bool]
"""Keys and values for every block of queries, which of them each query sees, and whether queries go by column."""


def _turned(x: Tensor) -> Tensor:
    """Blocks of places [B,H,N,C,*] as columns [B,H,C,N,*], and back."""
    return x.transpose(2, 3)


def _strided(k: Tensor, v: Tensor, real: Tensor, causal: bool) -> list[Part]:
    n, c = k.shape[2:4]
    beside = (1, 0) if causal else (1, 0, -1)  # the block before, this one, the one after
    near_k, near_v = (torch.cat([_shifted(x, by) for by in beside], 3) for x in (k, v))  # [B, H, N, 2C or 3C, *]
    near = torch.cat([_shifted(real[..., None], by)[..., 0] for by in beside], 3)[:, :, :, None]
    place = torch.arange(c, device=k.device)
    apart = place[:, None] - torch.cat([place - by * c for by in beside])  # t − s, [C, 2C or 3C]
    band = (apart >= 0) & (apart < c) if causal else apart.abs() < c
    block = torch.arange(n, device=k.device)
    other = block[:, None] > block if causal else block[:, None] != block  # whole strides away: in the band is none
    far = real.transpose(2, 3)[:, :, :, None] & other  # [B, 1, C, N, N]
    return [(near_k, near_v, near & band, False), (_turned(k), _turned(v), _turned(far), True)]


def _shifted(x: Tensor, by: int) -> Tensor:
    """Blocks [B,H,N,C,*] of which each is where the one `by` later was; zeros (False) come in."""
    if by == 0:
        return x
    return F.pad(x[:, :, :-1], (0, 0, 0, 0, 1, 0)) if by > 0 else F.pad(x[:, :, 1:], (0, 0, 0, 0, 0, 1))


def _fixed(k: Tensor, v: Tensor, real: Tensor, causal: bool, summary: int) -> list[Part]:
    n, c = k.shape[2:4]
    inside = real[:, :, :, None].expand(-1, -1, -1, c, -1)
    if causal:
        inside = inside & torch.ones(c, c, dtype=torch.bool, device=k.device).tril()
    ends_k, ends_v = (x[:, :, :, c - summary :].flatten(2, 3)[:, :, None] for x in (k, v))  # [B, H, 1, N·summary, *]
    block = torch.arange(n, device=k.device)
    other = block[:, None] > block if causal else block[:, None] != block
    other = other.repeat_interleave(summary, 1)[:, None]  # [N, 1, N·summary]
    ends = real[..., c - summary :].flatten(2)[:, :, None, None] & other
    return [(k, v, inside, False), (ends_k, ends_v, ends.expand(-1, -1, -1, c, -1), False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseOptions:
    pattern: str = "strided"
    """strided (for data with a period, as images) or fixed (as text)."""
    stride: int = 128
    """Best near the square root of the length."""
    summary: int | None = None
    """Of the fixed pattern alone: the last places of each block, which all see. None: 8, at most the stride."""
    path: str = "auto"
    """gather, flex, or auto: flex on CUDA."""

    def __post_init__(self) -> None:
        check_path(self.path)
        if self.pattern not in ("strided", "fixed"):
            raise ValueError(f"pattern={self.pattern!r} is unknown: use strided or fixed")
        if self.stride < 1:
            raise ValueError(f"stride={self.stride}: it counts places; use at least 1")
        if self.pattern == "fixed" and not 1 <= self.summarised <= self.stride:
            raise ValueError(f"summary={self.summary} with stride={self.stride}: use from 1 to the stride")

    @property
    def summarised(self) -> int:
        return min(8, self.stride) if self.summary is None else self.summary


class SparseKind(WholeSequenceKind):
    """One pattern for all heads, the union of its two parts. Keys and values of the past are all kept."""

    layer_type = "full_attention"
    Options = SparseOptions

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        options: SparseOptions = self.options_of(config)
        self.pattern: Pattern = "strided" if options.pattern == "strided" else "fixed"
        self.stride, self.summary, self.path = options.stride, options.summarised, options.path

    @classmethod
    def cost(cls, config: CosformerConfig, *, causal: bool) -> Cost:
        """The pairs of the pattern, near ones for each token and far ones for each token of context."""
        options: SparseOptions = cls.options_of(config)
        pair, stride = pair_flops(config), options.stride
        kept = key_value_bytes(config) if causal else 0
        if options.pattern == "strided":
            near, far = stride if causal else 2 * stride - 1, 1 / stride
        else:
            near, far = (stride + 1) / 2 if causal else stride, options.summarised / stride
        return Cost(flops=near * pair, flops_of_context=far * pair, cache_bytes_per_token=kept)

    def over(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        return sparse_over(
            q, k, v, real, causal=self.causal, pattern=self.pattern, stride=self.stride, summary=self.summary,
            path=self.path,
        )  # fmt: skip

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        if cache is None:
            return self.attend_whole(q, k, v, layout)
        new = k.shape[2]
        k, v = cache.update(k, v, self.layer)
        if k.shape[2] == new:
            return self.attend_whole(q, k, v, layout)
        t, s = q.shape[2], k.shape[2]
        if layout.allowed is None:
            at_q, at_k = (torch.arange(i, s, device=q.device)[None] for i in (s - t, 0))
        else:  # places count real tokens only: as many as a query sees, and those the last query sees
            seen = layout.allowed[:, 0]
            at_q, at_k = seen.sum(-1) - 1, seen[:, -1].long().cumsum(-1) - 1
        mask = sparse_mask(
            at_q, at_k, pattern=self.pattern, stride=self.stride, summary=self.summary, causal=True
        )[:, None]  # fmt: skip
        mask = mask if layout.allowed is None else mask & layout.allowed
        mask = mask | ~mask.any(-1, keepdim=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

    def extra_repr(self) -> str:
        return f"pattern={self.pattern!r}, stride={self.stride}, causal={self.causal}"


register_attention("sparse", SparseKind)
