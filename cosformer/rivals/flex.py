"""Patterns through torch's FlexAttention: a fused kernel that skips the tiles nobody sees. For CUDA.

Elsewhere torch runs it without fusing, with a score for every pair: for tests, so `auto` takes "gather" there.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

PATHS = ("auto", "gather", "flex")
TILE = 128
"""Of queries and of keys: torch's backward kernel on Hopper steps by 128 and refuses masks of smaller tiles."""
VARIANTS = 128
"""Of masks, modes and shapes that are compiled in one process."""
NARROWEST = 16
"""Width of a head below which torch's kernel does not compile."""
Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether row b, head h, query t sees key s."""


def check_path(path: str) -> None:
    if path not in PATHS:
        raise ValueError(f"path={path!r} is unknown: use auto (flex on CUDA, else gather), gather or flex")


def takes_flex(path: str, q: Tensor) -> bool:
    """Whether to run through FlexAttention: as `path` says, and for auto on CUDA, where its kernel can."""
    check_path(path)
    why = _why_not(q) if q.is_cuda else None
    if path == "flex" and why is not None:
        raise ValueError(f"path='flex', but {why}; use path='gather'")
    if path == "auto" and why is not None and not torch.compiler.is_compiling():
        warnings.warn(f"{why}: the slower path 'gather' runs instead", stacklevel=3)
    return path == "flex" or (path == "auto" and q.is_cuda and why is None)


def _why_not(q: Tensor) -> str | None:
    if q.shape[-1] < NARROWEST:
        return f"torch's FlexAttention takes heads of {NARROWEST} or wider, and these have {q.shape[-1]}"
    if q.dtype == torch.float64:
        return "torch's FlexAttention has no float64 on CUDA"
    return None


def flex_part(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, sees: Sees) -> tuple[Tensor, Tensor]:
    """o [B,H,T,V] and log Σ exp(scores) [B,H,T] over the keys that `sees` allows; a query without keys: 0 and −∞.

    q [B,H,T,K]; k, v [B,Hkv,S,*]; tiles [B or 1, H or 1, ⌈T/TILE⌉, ⌈S/TILE⌉]: True where a tile may hold a pair.
    """
    count = tiles.sum(-1, dtype=torch.int32)
    order = tiles.to(torch.uint8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    mask = BlockMask.from_kv_blocks(
        count, order, BLOCK_SIZE=TILE, mask_mod=sees, seq_lengths=(q.shape[2], k.shape[2])
    )  # fmt: skip
    # the kernel for short queries lacks some of what this one has: groups of three heads, for example
    options: Any = {"FORCE_USE_FLEX_ATTENTION": True}
    attend = flex_attention if torch.compiler.is_compiling() or not q.is_cuda else fused
    o, rest = attend(
        q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1], return_aux=AuxRequest(lse=True),
        kernel_options=options,
    )  # fmt: skip
    assert rest.lse is not None
    return o, rest.lse


def fused(*tensors: Tensor, **options: Any) -> Any:
    """flex_attention, compiled. Past its limit of variants torch would run the rest unfused, with a score for every
    pair; it is eight, as many as a pattern of two parts has in two modes, with gradients and without. Past ours it
    stops."""
    with torch._dynamo.config.patch(recompile_limit=VARIANTS, fail_on_recompile_limit_hit=True):
        return _compiled()(*tensors, **options)


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention)


def joined(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One softmax over several sets of keys, from o [...,V] and log Σ exp(scores) [...] of each."""
    lse = torch.stack([x for _, x in parts])
    most = lse.detach().amax(0)
    weights = torch.exp(lse - torch.where(most.isfinite(), most, 0))  # a query may see nothing in any part
    weights = weights / weights.sum(0).clamp(min=torch.finfo(weights.dtype).tiny)
    o = sum(w[..., None] * x for w, (x, _) in zip(weights, parts, strict=True))
    assert isinstance(o, Tensor)
    return o.to(parts[0][0].dtype)


def numbers(device: torch.device, *values: int) -> tuple[Tensor, ...]:
    """Numbers for a mask to read. As tensors: torch refuses to compile masks with a number that was another before."""
    return tuple(torch.full((), value, dtype=torch.int32, device=device) for value in values)


def tile_starts(places: int, device: torch.device) -> Tensor:
    """The first place of each tile, [⌈places/TILE⌉]."""
    return torch.arange(0, places, TILE, device=device)
