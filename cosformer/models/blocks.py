"""One block: attention, perhaps attention to an encoder, MLP; the same for decoder, encoder and encoder–decoder."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from cosformer.models.cache import self_attention_cache
from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import KINDS
from cosformer.models.layout import Layout
from cosformer.nn.joined import can_join, joined, product
from cosformer.nn.mlp import MLP
from cosformer.nn.positions import rotate


def make_norm(config: CosformerConfig) -> nn.Module:
    norm = nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm
    return norm(config.hidden_size, eps=config.norm_eps)


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    """norm(x), in fp32 also where autocast made x bf16: the fused norms of torch want one dtype."""
    weight = getattr(norm, "weight", None)  # a norm may have been replaced by one without
    lowered = x.dtype == torch.bfloat16 and weight is not None and weight.dtype == torch.float32
    return norm(x.float() if lowered else x)


class BlockAttention(nn.Module):
    """o_proj(kind(q_proj(x), k_proj(y), v_proj(y))): y is x itself, or the encoder's output."""

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__()
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        width, self.head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        inner, shared = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, inner, bias=bias)
        self.k_proj = nn.Linear(width, shared, bias=bias)
        self.v_proj = nn.Linear(width, shared, bias=bias)
        self.o_proj = nn.Linear(inner, width, bias=bias)
        self.kind = KINDS[config.attentions[layer]](config, layer, causal=causal)
        self.dropout = config.attention_dropout

    def forward(self, x: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        layers = self.q_proj, self.k_proj, self.v_proj
        rotary = None if self.kind.rotates_itself else layout.rotary
        if rotary is not None:
            q, k = (rotate(self._heads(y), rotary) for y in joined(x, layers[:2]))
        elif cache is None and self.kind.takes_joined and can_join(layers):
            qkv = product(x, layers).unflatten(-1, (-1, self.head_dim))
            return self._merge(self.kind.attend_joined(qkv, self.q_proj.weight.shape[0] // self.head_dim, layout))
        else:
            q, k = self._heads(self.q_proj(x)), self._heads(self.k_proj(x))
        v = self._heads(self.v_proj(x))
        return self._merge(self.kind.attend(q, k, v, layout, self_attention_cache(cache)))

    def across(self, x: Tensor, encoded: Tensor | None, layout: Layout, cache: Cache | None) -> Tensor:
        """Attention to the encoder, whose keys and values are made once and then read from the cache."""
        layer, kv, kept = self.kind.layer, None, None
        if isinstance(cache, EncoderDecoderCache):
            kept = cache.cross_attention_cache
        if kept is None or not (isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(layer)):
            if encoded is None:
                raise ValueError("a block with cross attention got no encoder_hidden_states: pass the encoder's output")
            kv = self._heads(self.k_proj(encoded)), self._heads(self.v_proj(encoded))
            if isinstance(cache, EncoderDecoderCache):
                cache.is_updated[layer] = True
        return self._merge(self.kind.attend_across(self._heads(self.q_proj(x)), kv, layout, kept))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, H, T, K]

    def _merge(self, o: Tensor) -> Tensor:
        return self.o_proj(F.dropout(o.transpose(1, 2).flatten(2), self.dropout, self.training))


class CosformerBlock(GradientCheckpointingLayer):
    """x + attention(norm(x)), then the same with the encoder if there is one, then with the MLP (pre-norm)."""

    def __init__(self, config: CosformerConfig, layer: int) -> None:
        super().__init__()
        self.norm_first, self.dropout = config.norm_first, config.hidden_dropout
        self.self_attn = BlockAttention(config, layer, causal=config.causal)
        self.attn_norm = make_norm(config)
        self.cross_attn = BlockAttention(config, layer, causal=False) if config.add_cross_attention else None
        self.cross_norm = make_norm(config) if config.add_cross_attention else None
        assert config.intermediate_size is not None
        self.mlp = MLP(config.hidden_size, config.intermediate_size, kind=config.mlp, bias=config.mlp_bias)
        self.mlp_norm = make_norm(config)

    def forward(
        self, x: Tensor, encoded: Tensor | None = None, *, layout: Layout, past_key_values: Cache | None = None
    ) -> Tensor:
        """`encoded` by place: a checkpointed block differentiates its positional arguments only."""
        h = normed(self.attn_norm, x) if self.norm_first else x
        x = self._add(x, self.self_attn(h, layout, past_key_values), self.attn_norm)
        if self.cross_attn is not None and self.cross_norm is not None:
            h = normed(self.cross_norm, x) if self.norm_first else x
            x = self._add(x, self.cross_attn.across(h, encoded, layout, past_key_values), self.cross_norm)
        h = normed(self.mlp_norm, x) if self.norm_first else x
        return self._add(x, self.mlp(h), self.mlp_norm)

    def _add(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = x + F.dropout(y, self.dropout, self.training)
        return x if self.norm_first else norm(x)
