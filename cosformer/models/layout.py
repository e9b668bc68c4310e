"""Which tokens are real, which may see which, and where one sequence ends: worked out once, used by every block."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache

from cosformer.models.cache import self_attention_cache
from cosformer.models.configuration import CosformerConfig
from cosformer.ops.packed import read_offsets


class Layout(NamedTuple):
    """B rows of T new tokens, after what a cache holds."""

    key_mask: Tensor | None = None
    """[B, T] bool, True for tokens that are not padding; None: none is."""
    allowed: Tensor | None = None
    """[B or 1, 1, T, S] bool for softmax blocks; None: everything that `causal` leaves."""
    offsets: Tensor | None = None
    """[N + 1] on the CPU: where each of N sequences packed into one row starts, and where the last ends."""
    rotary: tuple[Tensor, Tensor] | None = None
    """cos and sin [B or 1, T, K]."""
    places: Tensor | None = None
    """[B or 1, T] whole numbers: the place of each token in its own sequence, where a kind asks for it."""
    encoder_mask: Tensor | None = None
    """[B, S] bool for the encoder's tokens."""
    shift: Tensor | None = None
    """[B] places by which padding moves the encoder's tokens against the decoder's; None: none."""


def positions_of(
    mask: Tensor | None, offsets: Tensor | None, past: int | Tensor, new: int, device: torch.device
) -> Tensor:
    """[B or 1, T]: the place of each token in its own sequence, padding not counted."""
    if offsets is not None:
        starts = offsets[:-1].repeat_interleave(offsets.diff(), output_size=new)
        return (torch.arange(new) - starts).to(device)[None]
    if mask is not None:
        return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -new:]
    if isinstance(past, Tensor):
        past = past.to(device)
    return (torch.arange(new, device=device) + past)[None]


def packed_offsets(
    cu_seqlens: Tensor | None, position_ids: Tensor | None, mask: object | None, batch: int, new: int, cached: bool
) -> Tensor | None:
    """Offsets on the CPU, from cu_seqlens or from position_ids that start again; None: rows are single sequences."""
    if cu_seqlens is None:
        if position_ids is None or mask is not None or batch != 1 or new == 1 or cached:
            return None
        positions = position_ids.reshape(-1)
        starts = positions[1:] <= positions[:-1]
        if torch.compiler.is_compiling():
            torch.ops.aten._assert_async.msg(
                ~starts.any(), "position_ids start again: a compiled model takes packed sequences as cu_seqlens"
            )
            return None
        inside = starts.nonzero().flatten().cpu() + 1
        return None if len(inside) == 0 else F.pad(F.pad(inside, (1, 0)), (0, 1), value=new)
    if mask is not None:
        raise ValueError("cu_seqlens with attention_mask: packed sequences have no padding; leave the mask out")
    if cached:
        raise ValueError("cu_seqlens with past_key_values: packed sequences cannot be continued; pad them instead")
    if batch != 1:
        raise ValueError(
            f"cu_seqlens with {batch} rows: packed sequences lie one after another in a single row; pass [1, total]"
        )
    offsets = cu_seqlens.to("cpu", torch.int64)
    if not torch.compiler.is_compiling():
        read_offsets("cu_seqlens", offsets, new)
    return offsets


def longest_of(offsets: Tensor) -> int:
    """The longest of packed sequences; 1 while a graph is made, where the operator looks when it runs."""
    return 1 if torch.compiler.is_compiling() else int(offsets.diff().max())


def softmax_mask(
    mask: Tensor | None, *, new: int, past: int | Tensor, keys: int, causal: bool, device: torch.device
) -> Tensor | None:
    """[B or 1, 1, T, S] bool: which keys each query of a softmax block sees. A query that would see none sees all."""
    allowed = None if mask is None else F.pad(mask.bool(), (0, keys - mask.shape[1]))[:, None, None]  # [B, 1, 1, S]
    if causal and not (allowed is None and isinstance(past, int) and keys == past + new and (new == 1 or past == 0)):
        at_q = torch.arange(new, device=device)[:, None] + past
        before = torch.arange(keys, device=device) <= at_q  # [T, S]
        allowed = before[None, None] if allowed is None else allowed & before
    if allowed is None:
        return None
    return allowed | ~allowed.any(-1, keepdim=True)  # softmax over nothing is NaN; nobody reads such a row


def softmax_sizes(cache: Cache | None, config: CosformerConfig, new: int) -> tuple[int, int | Tensor]:
    """S, the keys a softmax block will see, and how many of them are there already."""
    own = self_attention_cache(cache)
    if own is None:
        return new, 0
    layer: Any = own.layers[config.layer_types.index("full_attention")]
    return layer.get_mask_sizes(new)[0], layer.get_seq_length()


def leading_padding(mask: Tensor) -> Tensor:
    """[B]: how many tokens of each row come before the first real one."""
    return (mask.long().cumsum(-1) == 0).sum(-1)
