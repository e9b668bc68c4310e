"""CosformerModel: embeddings, blocks, a last norm. Decoder or encoder by its config; the heads build on it."""

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.generic import can_return_tuple

from cosformer.models.blocks import CosformerBlock, make_norm, normed
from cosformer.models.cache import past_length
from cosformer.models.checkpoints import explain
from cosformer.models.configuration import CosformerConfig
from cosformer.models.configuration_checks import check_config
from cosformer.models.input_checks import check_cache, check_length, check_mask, check_target_start, check_tokens
from cosformer.models.kinds import KINDS
from cosformer.models.layout import (
    Layout,
    leading_padding,
    longest_of,
    packed_offsets,
    positions_of,
    softmax_mask,
    softmax_sizes,
)
from cosformer.nn.embedding import Embedding
from cosformer.nn.positions import rotary_tables, sinusoidal
from cosformer.ops.features import lower_for_autocast


class CosformerPreTrainedModel(PreTrainedModel):
    config: CosformerConfig
    config_class = CosformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CosformerBlock"]  # noqa: RUF012  (as transformers declares them)
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _is_stateful = True  # a state cannot be rolled back: assisted decoding is refused
    _can_compile_fullgraph = True
    _supports_sdpa = True
    _supports_attention_backend = False

    def __init__(self, config: CosformerConfig, *args: Any, **kwargs: Any) -> None:
        check_config(config)  # fields may have been set since it was made
        super().__init__(config, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; a local checkpoint that does not fit or is cut short says which tensor."""
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        except Exception as error:
            folder = Path(str(pretrained_model_name_or_path))
            if not folder.is_dir() or not any(folder.glob("*.safetensors")):
                raise
            with torch.device("meta"):
                model = cls(kwargs.get("config") or CosformerConfig.from_pretrained(folder))
            if (why := explain(folder, model)) is None:
                raise
            raise RuntimeError(f"{folder} does not load: {why}") from error


class CosformerModel(CosformerPreTrainedModel):
    """last_hidden_state [B, T, E] of token ids or embeddings."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        if config.is_encoder_decoder:
            raise ValueError(
                "CosformerModel is one stack of blocks, but the config has is_encoder_decoder=True: use "
                "CosformerForConditionalGeneration, which has two"
            )
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        learned, types = config.positions == "learned", config.type_vocab_size
        places = config.learned_positions or config.horizon
        self.embed_positions = nn.Embedding(places, config.hidden_size) if learned else None
        self.embed_types = Embedding(types, config.hidden_size) if types else None
        self.embed_norm = make_norm(config) if config.embedding_norm else None
        self.layers = nn.ModuleList([CosformerBlock(config, i) for i in range(config.num_hidden_layers)])
        self.norm = make_norm(config) if config.norm_first else None
        self.wants_places = any(KINDS[name].wants_places(config) for name in config.attentions)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.embed_tokens = value

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None, past_key_values: Cache | None = None, inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None, *, token_type_ids: Tensor | None = None, cu_seqlens: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None, encoder_attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None, **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:  # fmt: skip
        """attention_mask [B, S] counts the tokens in the cache too. cu_seqlens [N + 1]: sequences packed into one row.

        position_ids are taken as given; without them they follow the mask, so padding may be on either side. In one row
        without a mask, position_ids that start again mark packed sequences too.
        """
        if kwargs.get("output_attentions", self.config.output_attentions):
            raise ValueError(
                "output_attentions=True: linear attention never forms the weights; cosformer.attention_weights makes "
                "them from q and k, in quadratic time"
            )
        if position_ids is not None and position_ids.dim() == 1:
            position_ids = position_ids[None]
        check_tokens(input_ids, inputs_embeds, position_ids, token_type_ids, self.config.hidden_size)
        check_cache(past_key_values, self.config)
        x: Any = inputs_embeds if input_ids is None else self.embed_tokens(input_ids)
        if self.config.scale_embeddings:
            x = x * math.sqrt(self.config.hidden_size)
        offsets = find_offsets(x, attention_mask, position_ids, past_key_values, cu_seqlens, kwargs)
        past_key_values = self._cache(past_key_values, use_cache if offsets is None else False)
        if offsets is not None and (past_key_values is not None or encoder_hidden_states is not None):
            raise ValueError(
                "packed sequences with past_key_values or an encoder: they can be neither continued nor paired with "
                "others; pad them instead"
            )
        x, layout = self._enter(x, attention_mask, position_ids, past_key_values, token_type_ids, offsets)
        if encoder_hidden_states is not None:
            if not self.config.add_cross_attention:
                raise ValueError("encoder_hidden_states for a model without cross attention: they would be ignored")
            mask = attention_mask if isinstance(attention_mask, Tensor) else None
            check_target_start(mask, x.shape[1], past_key_values)
            layout = _beside_encoder(layout, encoder_hidden_states, encoder_attention_mask, past_key_values)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        seen: Any = ()
        for block in self.layers:
            seen = (*seen, x) if output_hidden_states else ()
            x = block(x, encoder_hidden_states, layout=layout, past_key_values=past_key_values)
        if self.norm is not None:
            x = normed(self.norm, x)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=x,
            past_key_values=past_key_values,
            hidden_states=(*seen, x) if output_hidden_states else None,
        )

    def _cache(self, cache: Cache | None, use_cache: bool | None) -> Cache | None:
        config = self.config
        if use_cache is None:
            use_cache = config.use_cache and config.causal and not self.training
        if use_cache and not config.causal:
            raise ValueError("use_cache=True in an encoder: every token sees the later ones, so nothing can be kept")
        if self.gradient_checkpointing and self.training:
            if cache is not None:
                raise ValueError(
                    "past_key_values with gradient checkpointing: a checkpointed block runs twice and would count its "
                    "tokens twice; pass the whole sequence, or call gradient_checkpointing_disable()"
                )
            return None
        if use_cache and cache is None:
            cache = DynamicCache(config=config)
            if config.add_cross_attention:
                cache = EncoderDecoderCache(cache, DynamicCache(config=config))
        return cache

    def _enter(
        self, x: Tensor, attention_mask: Tensor | dict[str, Tensor | None] | None, position_ids: Tensor | None,
        cache: Cache | None, token_type_ids: Tensor | None, offsets: Tensor | None,
    ) -> tuple[Tensor, Layout]:  # fmt: skip
        """Embeddings with positions and all, and the layout every block will need."""
        config, (batch, new, _) = self.config, x.shape
        past, mask = past_length(cache), attention_mask if isinstance(attention_mask, Tensor) else None
        check_length(config, past, new if offsets is None else longest_of(offsets))
        check_mask(mask, batch, new, past)
        layout = Layout(offsets=offsets)
        if isinstance(attention_mask, dict):
            layout = layout._replace(key_mask=attention_mask["keys"], allowed=attention_mask["softmax"])
            position_ids = attention_mask["positions"] if position_ids is None else position_ids
        elif offsets is None:
            keys, allowed = make_masks(config, x, mask, cache, causal=config.causal)
            layout = layout._replace(key_mask=keys, allowed=allowed)
        if (config.positions != "none" or self.wants_places) and position_ids is None:
            position_ids = positions_of(mask, offsets, past, new, x.device)
        layout = layout._replace(places=position_ids if self.wants_places else None)
        if config.positions == "learned":
            assert self.embed_positions is not None
            x = x + self.embed_positions(position_ids)
        elif config.positions == "sinusoidal":
            assert position_ids is not None
            x = x + sinusoidal(position_ids, config.hidden_size, x.dtype)
        elif config.positions == "rotary":
            assert position_ids is not None
            assert config.head_dim is not None
            layout = layout._replace(rotary=rotary_tables(position_ids, config.head_dim, config.rotary_base, x.dtype))
        if self.embed_types is not None:
            none = torch.zeros(1, 1, dtype=torch.int64, device=x.device)
            x = x + self.embed_types(none if token_type_ids is None else token_type_ids)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        x = F.dropout(x, config.hidden_dropout, self.training)
        return x if config.residual_in_fp32 else _lowered(x), layout


def _lowered(x: Tensor) -> Tensor:
    """In bf16 under autocast to it. fp16 has too small a range for a sum of all blocks."""
    (low,) = lower_for_autocast(x)
    return low if low.dtype == torch.bfloat16 else x


def find_offsets(
    x: Tensor, mask: Tensor | dict[str, Tensor | None] | None, position_ids: Tensor | None, cache: Cache | None,
    cu_seqlens: Tensor | None, kwargs: dict[str, Any],
) -> Tensor | None:  # fmt: skip
    """Where packed sequences start, on the CPU; None where each row is one. transformers says cu_seq_lens_q."""
    cu_seqlens = kwargs.get("cu_seq_lens_q") if cu_seqlens is None else cu_seqlens
    past = past_length(cache)
    under_way = isinstance(past, Tensor) or past > 0
    return packed_offsets(cu_seqlens, position_ids, mask, x.shape[0], x.shape[1], under_way)


def make_masks(
    config: CosformerConfig, x: Tensor, mask: Tensor | None, cache: Cache | None, *, causal: bool
) -> tuple[Tensor | None, Tensor | None]:
    """What cosFormer blocks and what softmax blocks need of a mask [B, S], for tokens x [B, T, *]."""
    new = x.shape[1]
    keys = None if mask is None else mask[:, -new:].bool()
    if "full_attention" not in config.layer_types:
        return keys, None
    length, held = softmax_sizes(cache, config, new)
    return keys, softmax_mask(mask, new=new, past=held, keys=length, causal=causal, device=x.device)


def _beside_encoder(layout: Layout, encoded: Tensor, mask: Tensor | None, cache: Cache | None) -> Layout:
    """What the decoder needs to know of the encoder's padding, and of its own, to place one beside the other."""
    check_mask(mask, encoded.shape[0], encoded.shape[1], 0)
    layout = layout._replace(encoder_mask=None if mask is None else mask.bool())
    if isinstance(cache, EncoderDecoderCache) and any(cache.is_updated.values()):
        return layout
    shift = None if mask is None else leading_padding(mask)
    if layout.key_mask is not None:
        before = leading_padding(layout.key_mask)
        shift = -before if shift is None else shift - before
    return layout._replace(shift=shift)
