"""attention="bigbird": softmax over blocks of keys (Zaheer et al. 2020): near, random, the first and the last."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import Cost, make_options, register_attention
from cosformer.models.layout import Layout
from cosformer.models.softmax_kind import pair_flops
from cosformer.rivals.drawn_features import check_seed
from cosformer.rivals.flex import TILE, check_path, flex_part, numbers, takes_flex, tile_starts
from cosformer.rivals.function_checks import check_sequences, refuse_causal, sequence_bounds
from cosformer.rivals.whole_sequence import WholeSequenceKind, for_each_head, over_sequences

WINDOW, GLOBAL = 3, 2  # blocks: itself and its neighbours; the first and the last
WHY_NOT_CAUSAL = "its random and global blocks lie ahead as well as behind, and its authors define no other form"


def seen_blocks(lengths: Tensor, blocks: int, heads: int, *, block: int, random: int, seed: int) -> Tensor:
    """[B,H,N,N] bool: which of N blocks of keys each block of queries sees, for rows of `lengths` [B] real tokens.

    Every block sees WINDOW blocks around it, the first, the last that holds a real token, and `random` others; the
    first and the last see all. What a row sees does not depend on how much padding follows it.
    """
    n = torch.arange(blocks, device=lengths.device)
    held = ((lengths + block - 1) // block).clamp(min=1)[:, None, None, None]  # blocks with real tokens
    i, j, head = n[:, None], n, torch.arange(heads, device=lengths.device)[:, None, None]
    everywhere = (j == 0) | (j == held - 1)  # [B, 1, 1, N]
    certain = everywhere | ((i - j).abs() <= WINDOW // 2)
    lots = _scrambled(((seed * 1021 + head) * 65_521 + i) * 65_521 + j).expand(len(lengths), -1, -1, -1)
    lots = lots.masked_fill(certain | (j >= held), -1)  # [B, H, N, N]
    best = lots.topk(min(random, blocks), -1)
    drawn = torch.zeros_like(lots, dtype=torch.bool).scatter(-1, best.indices, best.values >= 0)
    return (certain | drawn | everywhere.mT) & (j < held)


def bigbird_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None, block: int = 64, random: int = 3, seed: int = 0, path: str = "auto",
) -> Tensor:  # fmt: skip
    """softmax over the keys of `seen_blocks`, blocks being those of real tokens. q [B,H,T,K]; k, v [B,Hkv,T,*].

    key_mask and cu_seqlens as in `cosformer_attention`; what a masked token gets means nothing. causal: refused.
    path: gather (copies of the blocks each block sees), flex (FlexAttention), or auto: flex on CUDA, else gather.
    """
    refuse_causal(causal, "bigbird", WHY_NOT_CAUSAL)
    make_options(BigBirdOptions, {"block": block, "random": random, "seed": seed, "path": path})
    q, k, v = check_sequences(q, k, v, key_mask, cu_seqlens, places="blocks are those of one sequence")
    over = functools.partial(bigbird_over, block=block, random=random, seed=seed, path=path)
    return over_sequences(over, (q, k, v), key_mask, sequence_bounds(cu_seqlens, q, "bigbird_attention"))


def bigbird_over(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, *, block: int, random: int, seed: int, path: str
) -> Tensor:
    """The same for rows whose real tokens come first: real [B,T]."""
    b, h, t, _ = q.shape
    lengths = real.sum(1) if real is not None else torch.full((1,), t, device=q.device)
    seen = seen_blocks(lengths, -(-t // block), h, block=block, random=random, seed=seed)
    seen, lengths = seen.expand(b, -1, -1, -1), lengths.expand(b)
    if takes_flex(path, q):
        return flex_blocks(q, k, v, seen, lengths, block=block)
    return gathered_blocks(q, k, v, seen, lengths, block=block, most=WINDOW + GLOBAL + random)


def gathered_blocks(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, lengths: Tensor, *, block: int, most: int) -> Tensor:
    """softmax over the blocks of `seen` [B,H,N,N], at most `most` for each but the first and the last real one."""
    b, h, t, _ = q.shape
    k, v, fill = for_each_head(k, h), for_each_head(v, h), -t % block
    q, k, v = (F.pad(x, (0, 0, 0, fill)).unflatten(2, (-1, block)) for x in (q, k, v))  # [B, H, N, C, *]
    blocks, rows = q.shape[2], torch.arange(b, device=q.device)
    keys = (torch.arange(t + fill, device=q.device) < lengths[:, None]).unflatten(1, (-1, block))  # [B, N, C]

    # rows of the first and the last block see more: done below
    found = seen.to(torch.uint8).topk(min(most, blocks), -1)
    places = found.indices  # [B, H, N, most]
    heads = torch.arange(h, device=q.device)[:, None, None]
    near_k, near_v = (x[rows[:, None, None, None], heads, places].flatten(3, 4) for x in (k, v))  # [B,H,N,most·C,*]
    allowed = keys[rows[:, None, None, None], places] & found.values.bool()[..., None]  # [B, H, N, most, C]
    allowed = allowed.flatten(3)[:, :, :, None]
    allowed = allowed | ~allowed.any(-1, keepdim=True)  # a row without keys: nobody reads what it gives
    # heads are batch and blocks are heads: the kernels of SDPA take four dimensions
    o = F.scaled_dot_product_attention(*(x.flatten(0, 1) for x in (q, near_k, near_v)), attn_mask=allowed.flatten(0, 1))
    o = o.unflatten(0, (b, h))  # [B, H, N, C, V]

    last = (lengths - 1).clamp(min=0) // block
    ends = torch.stack([torch.zeros_like(last), last], 1)  # [B, 2]
    asking = q[rows[:, None], :, ends].transpose(1, 2).flatten(2, 3)  # [B, H, 2C, K]
    some = keys.flatten(1)[:, None, None]
    some = some | ~some.any(-1, keepdim=True)
    whole = F.scaled_dot_product_attention(asking, k.flatten(2, 3), v.flatten(2, 3), attn_mask=some)
    whole = whole.unflatten(2, (2, block))
    at_end = torch.arange(blocks, device=q.device) == last[:, None]  # [B, N]
    o = torch.where(at_end[:, None, :, None, None], whole[:, :, 1:], o)
    o = torch.cat([whole[:, :, :1], o[:, :, 1:]], 2)
    return o.flatten(2, 3)[:, :, :t]


def flex_blocks(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, lengths: Tensor, *, block: int) -> Tensor:
    """The same through FlexAttention. Its tiles are of 128: with smaller blocks it computes more than it uses."""
    start = tile_starts(q.shape[2], q.device)[:, None]
    first = torch.arange(seen.shape[-1], device=q.device) * block
    touch = ((first < start + TILE) & (first + block > start)).float()  # [tiles, N]: which blocks a tile overlaps
    tiles = touch @ seen.float() @ touch.mT > 0
    (size,) = numbers(q.device, block)

    def sees(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return seen[b, h, t // size, s // size] & (s < lengths[b])

    return flex_part(q, k, v, tiles, sees)[0]


def _scrambled(x: Tensor) -> Tensor:
    """A whole number below 2³² for each: the same lots on every device, however many are drawn."""
    x = x & 0xFFFFFFFF
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class BigBirdOptions:
    block: int = 64
    """Tokens in a block."""
    random: int = 3
    """Random blocks of keys for each block of queries, beside 3 near ones, the first and the last."""
    seed: int = 0
    path: str = "auto"
    """gather, flex, or auto: flex on CUDA."""

    def __post_init__(self) -> None:
        check_path(self.path)
        check_seed(self.seed)
        if self.block < 1:
            raise ValueError(f"block={self.block}: it counts tokens; use at least 1")
        if self.random < 0:
            raise ValueError(f"random={self.random}: it counts blocks; use 0 for none")


class BigBirdKind(WholeSequenceKind):
    Options = BigBirdOptions
    causal_too = False
    why_not_causal = WHY_NOT_CAUSAL

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        options: BigBirdOptions = self.options_of(config)
        self.block, self.random, self.seed = options.block, options.random, options.seed * 509 + layer
        self.path = options.path

    @classmethod
    def cost(cls, config: CosformerConfig, *, causal: bool) -> Cost:
        """Every token sees some blocks; and tokens of GLOBAL blocks see all, which is as much again for each key."""
        options: BigBirdOptions = cls.options_of(config)
        return Cost(flops=(WINDOW + GLOBAL + options.random + GLOBAL) * options.block * pair_flops(config))

    def over(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        return bigbird_over(q, k, v, real, block=self.block, random=self.random, seed=self.seed, path=self.path)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: None) -> Tensor:
        return self.attend_whole(q, k, v, layout)


register_attention("bigbird", BigBirdKind)
