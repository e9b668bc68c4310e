"""The masks of nn.MultiheadAttention, where linear time can take them: True or −inf ignores, False or 0 keeps."""

import math

import torch
from torch import Tensor


def kept_keys(mask: Tensor, shape: tuple[int, int], batched: bool) -> Tensor:
    """[B, S], True where a key counts, from a key_padding_mask, which marks what to ignore."""
    if tuple(mask.shape) != (shape if batched else shape[1:]):
        raise ValueError(
            f"key_padding_mask has shape {tuple(mask.shape)}, but there are [B, S] = {list(shape)} keys: one entry for "
            f"each is needed, {'[B, S] whatever batch_first is' if batched else '[S] without a batch'}"
        )
    if mask.dtype != torch.bool:
        if not mask.is_floating_point():
            raise TypeError(
                f"key_padding_mask is {mask.dtype}: it must be bool, True where a key is ignored; use mask.bool()"
            )
        _require(
            (mask == 0) | (mask == -math.inf),
            "key_padding_mask holds values other than 0 and -inf: they would be added to logits, and without softmax "
            "there are none; pass a bool mask, True where a key is ignored",
        )
        mask = mask == -math.inf
    return ~(mask if batched else mask[None])


def check_causal_mask(mask: Tensor, q: Tensor, k: Tensor) -> None:
    """Refuses an attn_mask other than the causal one, in which the T queries are the last of S positions."""
    message = (
        "attn_mask is not the causal mask [T, S]: a mask that differs by query cannot be had in linear time; pass "
        "is_causal=True or key_padding_mask, or take cosformer.attention_reference, which is quadratic and accepts one"
    )
    (b, h, t, _), s = q.shape, k.shape[2]
    if tuple(mask.shape) not in ((t, s), (b * h, t, s)) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(f"{message}. Got {mask.dtype} of shape {tuple(mask.shape)} for B={b}, H={h}, T={t}, S={s}")
    ignored = torch.ones(t, s, dtype=torch.bool, device=mask.device).triu(1 + s - t)
    wanted = ignored if mask.dtype == torch.bool else mask.new_zeros(t, s).masked_fill(ignored, -math.inf)
    _require(mask == wanted, message)


def _require(holds: Tensor, message: str) -> None:
    """ValueError unless all are true. A compiled graph finds out when it runs: RuntimeError, in the same words."""
    if torch.compiler.is_compiling():
        torch.ops.aten._assert_async.msg(holds.all(), message)
    elif not holds.all():
        raise ValueError(message)
