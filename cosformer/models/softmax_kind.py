"""attention="softmax": softmax(QKᵀ/√K)V through torch's scaled_dot_product_attention, with a cache that grows."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import AttentionKind, Cost, register_attention
from cosformer.models.layout import Layout


class SoftmaxKind(AttentionKind):
    layer_type = "full_attention"

    @classmethod
    def cost(cls, config: CosformerConfig, *, causal: bool) -> Cost:
        kept = key_value_bytes(config) if causal else 0
        return Cost(flops=0, flops_of_context=pair_flops(config), cache_bytes_per_token=kept)

    def weights(self, q: Tensor, k: Tensor, layout: Layout) -> Tensor:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = (q.float() @ k.float().mT) / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
        return scores.softmax(-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        if layout.offsets is not None:  # a sequence at a time: no query meets a key of another
            bounds = itertools.pairwise(layout.offsets.tolist())
            pieces = [_sdpa(q[:, :, i:j], k[:, :, i:j], v[:, :, i:j], None, self.causal) for i, j in bounds]
            return torch.cat(pieces, 2)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        return _sdpa(q, k, v, layout.allowed, self.causal and layout.allowed is None and q.shape[2] > 1)

    def attend_across(self, q: Tensor, kv: tuple[Tensor, Tensor] | None, layout: Layout, cache: Cache | None) -> Tensor:
        if kv is not None:
            k, v = kv if cache is None else cache.update(*kv, self.layer)
        else:
            assert cache is not None
            held: Any = cache.layers[self.layer]
            k, v = held.keys, held.values
        allowed = None
        if layout.encoder_mask is not None:
            allowed = layout.encoder_mask[:, None, None]
            allowed = allowed | ~allowed.any(-1, keepdim=True)
        return _sdpa(q, k, v, allowed, False)


def pair_flops(config: CosformerConfig) -> int:
    """Of one query and one key in every head: their product, and the value's share of the answer."""
    assert config.head_dim is not None
    return 4 * config.head_dim * config.num_attention_heads


def key_value_bytes(config: CosformerConfig) -> int:
    """Of the key and the value of a token, in all heads."""
    assert config.head_dim is not None
    assert config.num_key_value_heads is not None
    dtype: Any = config.dtype or torch.float32
    return 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    is_causal = True if is_causal else False  # noqa: SIM210  where lengths vary, the compiler hands over a SymBool
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
    )


register_attention("softmax", SoftmaxKind)
