"""attention="cosformer": the operator, with a state of fixed size as its cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from cosformer.models.cache import STATE_LAYER_TYPE, StateLayer
from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import AttentionKind, Cost, register_attention
from cosformer.models.layout import Layout
from cosformer.ops.attention import attention_step, cosformer_attention
from cosformer.ops.cost import flops_per_token, state_bytes
from cosformer.ops.joined import joined_attention
from cosformer.ops.reference import attention_weights
from cosformer.ops.state import AttentionState


class CosformerKind(AttentionKind):
    """o = Σ w v / Σ w with w[t,s] = φ(q[t])·φ(k[s])·cos(π(t − s)/(2M)); normalizer="norm": RMSNorm(Σ w v) instead."""

    layer_type = STATE_LAYER_TYPE
    needs_horizon = True

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        self.horizon = config.horizon
        self.options: dict[str, Any] = {
            "feature_map": config.feature_map, "normalize": config.normalizer == "sum",
        }  # fmt: skip
        assert config.head_dim is not None
        self.norm = nn.RMSNorm(config.head_dim, config.norm_eps) if config.normalizer == "norm" else None

    @classmethod
    def cost(cls, config: CosformerConfig, *, causal: bool) -> Cost:
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        width = config.head_dim
        kept = state_bytes(1, config.num_key_value_heads, width, width) if causal else 0
        return Cost(
            flops=config.num_attention_heads * flops_per_token(width, width, causal=causal), state_bytes=kept
        )  # fmt: skip

    def weights(self, q: Tensor, k: Tensor, layout: Layout) -> Tensor:
        """By the definition. normalizer="norm" divides by no sum: the weights are shown as they are."""
        return attention_weights(q, k, causal=self.causal, horizon=self.horizon, **self.options)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        if cache is None:
            o = cosformer_attention(
                q, k, v, causal=self.causal, horizon=self.horizon, key_mask=layout.key_mask,
                cu_seqlens=layout.offsets, **self.options,
            )  # fmt: skip
            return self._normed(o)
        past = self._layer(cache)
        if q.shape[2] == 1 and not _wants_gradient(q, k, v):
            if not past.is_initialized:
                past.lazy_initialization(k, v)
            o = attention_step(q, k, v, past.state(self.horizon), key_mask=layout.key_mask, **self.options)
        else:
            before = past.state(self.horizon) if past.is_initialized else None
            o, after = cosformer_attention(
                q, k, v, causal=True, horizon=self.horizon, key_mask=layout.key_mask, state=before, return_state=True,
                **self.options,
            )  # fmt: skip
            past.keep(after)
        past.advance(q.shape[2])
        return self._normed(o)

    @property
    def takes_joined(self) -> bool:
        return self.attends_as(CosformerKind)

    def attend_joined(self, qkv: Tensor, heads: int, layout: Layout) -> Tensor:
        o = joined_attention(
            qkv, heads, causal=self.causal, horizon=self.horizon, key_mask=layout.key_mask,
            cu_seqlens=layout.offsets, **self.options,
        )  # fmt: skip
        return self._normed(o)

    def attend_across(self, q: Tensor, kv: tuple[Tensor, Tensor] | None, layout: Layout, cache: Cache | None) -> Tensor:
        """The encoder is a state too: seen from the place before the first query, it turns with every query."""
        past = self._layer(cache) if cache is not None else None
        if kv is not None:
            state = self._encoded(*kv, layout)
            if past is not None:
                past.keep(state)
        else:
            assert past is not None
            state = past.state(self.horizon)
        b, hkv, _, width = state.norm.shape
        nothing = q.new_zeros(b, hkv, 1, width)  # a masked key: the state turns and nothing is added
        unseen = torch.zeros(b, 1, dtype=torch.bool, device=q.device)
        if past is not None and q.shape[2] == 1 and not _wants_gradient(q, state.sums):
            o = attention_step(q, nothing, nothing, past.state(self.horizon), key_mask=unseen, **self.options)
        else:
            o = cosformer_attention(q, nothing, nothing, key_mask=unseen, state=state, **self.options)
            if past is not None:
                past.keep(state.turned(q.shape[2]))
        if past is not None:
            past.advance(q.shape[2])
        return self._normed(o)

    def _encoded(self, k: Tensor, v: Tensor, layout: Layout) -> AttentionState:
        """The encoder's keys and values as a state whose next position is the decoder's first."""
        query = torch.zeros_like(k[:, :, :1])  # the operator wants one; its answer is not used
        _, state = cosformer_attention(
            query, k, v, horizon=self.horizon, key_mask=layout.encoder_mask, return_state=True, **self.options
        )
        s = k.shape[2]
        state = state.turned(-s if layout.shift is None else layout.shift - s)
        state.length = 0
        return state

    def _layer(self, cache: Cache) -> StateLayer:
        layer = cache.layers[self.layer]
        if not isinstance(layer, StateLayer):
            raise TypeError(
                f"past_key_values holds a {type(layer).__name__} for block {self.layer}, which is cosFormer: make the "
                "cache with the config of this model, as in DynamicCache(config=model.config)"
            )
        return layer

    def _normed(self, o: Tensor) -> Tensor:
        if self.norm is None:
            return o
        return self.norm(o.to(self.norm.weight.dtype)).to(o.dtype)  # under autocast o is lower than the weight

    def extra_repr(self) -> str:
        return f"horizon={self.horizon}, causal={self.causal}, feature_map={self.options['feature_map']!r}"


def _wants_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


register_attention("cosformer", CosformerKind)
