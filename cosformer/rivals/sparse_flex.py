"""The Sparse Transformer's patterns through FlexAttention, in two parts each, joined by their logarithms of sums.

One mask over all pairs would be wasted on a kernel that skips tiles: with a stride of up to 255 every tile of 128 × 128
holds a pair of the strided pattern, and nothing is skipped. Taken apart each part is dense or regular: the near places
are a band of tiles; places a multiple of the stride away are neighbours once tokens lie in columns; the summaries of a
fixed pattern are a short row of keys of their own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.rivals.flex import TILE, flex_part, joined, numbers, tile_starts


def strided_by_flex(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, *, stride: int, causal: bool) -> Tensor:
    """The last `stride` places (both sides if not causal), and every place a multiple of `stride` away."""
    b, _, t, _ = q.shape
    (reach,) = numbers(q.device, stride)

    def near(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        band = (t - s >= 0) & (t - s < reach) if causal else (t - s).abs() < reach
        return band & (s < lengths[b])

    start = tile_starts(t, q.device)
    apart = start[:, None] - start  # of any two places in the tiles: less than TILE more or less than this
    band = (apart > -TILE) & (apart < stride + TILE - 1) if causal else apart.abs() < stride + TILE - 1
    first = flex_part(q, k, v, band[None, None], near)

    fill = -t % stride
    q_c, k_c, v_c = (  # rows of the batch are now columns: [B·stride, H, N, K]
        F.pad(x, (0, 0, 0, fill)).unflatten(2, (-1, stride)).permute(0, 3, 1, 2, 4).flatten(0, 1) for x in (q, k, v)
    )
    column = torch.arange(stride, device=q.device)
    real = ((lengths[:, None] - column + stride - 1) // stride).flatten()  # places of each column that hold a token

    def far(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return (s < t if causal else s != t) & (s < real[b])  # the token itself is in the band

    start = tile_starts(q_c.shape[2], q.device)
    tiles = start[:, None] >= start if causal else torch.ones(len(start), len(start), dtype=torch.bool, device=q.device)
    o, lse = flex_part(q_c, k_c, v_c, tiles[None, None], far)
    o = o.unflatten(0, (b, stride)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :t]
    lse = lse.unflatten(0, (b, stride)).permute(0, 2, 3, 1).flatten(2, 3)[:, :, :t]
    return joined([first, (o, lse)])


def fixed_by_flex(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, *, stride: int, summary: int, causal: bool
) -> Tensor:
    """The places of the same block of `stride`, and the last `summary` places of every other block."""
    b, _, t, _ = q.shape
    fill = -t % stride
    blocks = [F.pad(x, (0, 0, 0, fill)).unflatten(2, (-1, stride)) for x in (q, k, v)]  # [B, H, N, C, *]
    n = blocks[0].shape[2]
    block = torch.arange(n, device=q.device)
    real = (lengths[:, None] - block * stride).flatten()  # places of each block that hold a token, or fewer than none

    def inside(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return (s <= t) & (s < real[b]) if causal else s < real[b]

    start = tile_starts(stride, q.device)
    tiles = start[:, None] >= start if causal else torch.ones(len(start), len(start), dtype=torch.bool, device=q.device)
    q_n, k_n, v_n = (x.transpose(1, 2).flatten(0, 1) for x in blocks)  # rows of the batch are now blocks
    o, lse = flex_part(q_n, k_n, v_n, tiles[None, None], inside)
    o = o.unflatten(0, (b, n)).transpose(1, 2).flatten(2, 3)[:, :, :t]
    lse = lse.unflatten(0, (b, n)).transpose(1, 2).flatten(2, 3)[:, :, :t]

    size, ending = numbers(q.device, stride, summary)

    def ends(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        of, place = s // ending, (s // ending) * size + size - ending + s % ending
        return (of < t // size if causal else of != t // size) & (place < lengths[b])

    keys, values = (x[:, :, :, stride - summary :].flatten(2, 3) for x in blocks[1:])  # [B, Hkv, N·summary, *]
    at_q, at_k = tile_starts(t, q.device), tile_starts(n * summary, q.device)
    tiles = torch.ones(len(at_q), len(at_k), dtype=torch.bool, device=q.device)
    if causal:
        tiles = at_k // summary < ((at_q + TILE - 1) // stride)[:, None]
    return joined([(o, lse), flex_part(q, keys, values, tiles[None, None], ends)])
