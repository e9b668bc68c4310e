"""Refuses inputs a model cannot answer, before anything is computed: what, got, why, fix."""

import torch
from torch import Tensor
from transformers.cache_utils import Cache, EncoderDecoderCache

from cosformer.models.cache import is_traced, self_attention_cache
from cosformer.models.configuration import CosformerConfig


def check_tokens(
    ids: Tensor | None, embeds: Tensor | None, position_ids: Tensor | None, types: Tensor | None, width: int
) -> None:
    """Shapes that broadcasting would take for others."""
    if (ids is None) == (embeds is None):
        raise ValueError("pass either input_ids or inputs_embeds: exactly one says which tokens these are")
    if ids is not None and ids.dim() != 2:
        raise ValueError(f"input_ids has shape {tuple(ids.shape)}: pass [B, T], a row for each sequence")
    if embeds is not None and (embeds.dim() != 3 or embeds.shape[2] != width):
        raise ValueError(f"inputs_embeds has shape {tuple(embeds.shape)}: pass [B, T, hidden_size={width}]")
    x = embeds if ids is None else ids
    assert x is not None
    batch, new = x.shape[:2]
    for name, given in (("position_ids", position_ids), ("token_type_ids", types)):
        if given is not None and (given.dim() != 2 or given.shape[0] not in (1, batch) or given.shape[1] != new):
            raise ValueError(
                f"{name} has shape {tuple(given.shape)} for {batch} rows of {new} tokens: pass [B, T], or [1, T] for "
                "rows that are alike"
            )


def check_cache(cache: Cache | None, config: CosformerConfig) -> None:
    """A cache made without the config would hold layers of another kind, or none."""
    if cache is not None and not isinstance(cache, Cache):
        raise TypeError(
            f"past_key_values is a {type(cache).__name__}: pass a Cache, such as DynamicCache(config=model.config) or "
            "what an earlier call returned"
        )
    own = self_attention_cache(cache)
    if own is not None and len(own.layers) != config.num_hidden_layers:
        raise ValueError(
            f"past_key_values has {len(own.layers)} layers but the model has {config.num_hidden_layers}: make it with "
            f"{type(own).__name__}(config=model.config), so that every block finds its own kind of layer"
        )
    if config.add_cross_attention and cache is not None and not isinstance(cache, EncoderDecoderCache):
        raise ValueError(
            f"past_key_values is a {type(cache).__name__}, which has no place for what the encoder gave: pass "
            "EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))"
        )


def check_length(config: CosformerConfig, past: int | Tensor, new: int) -> None:
    """Refuses to pass the horizon, before anything is computed."""
    if not config.has_longest:
        return
    if isinstance(past, Tensor):
        if is_traced(past) or past.is_cuda:  # to read it would wait for the device
            torch.ops.aten._assert_async.msg(past + new <= config.horizon, "the model's horizon is reached")
            return
        past = int(past)
    if past + new > config.horizon:
        held = f" after {past} in the cache" if past else ""
        why = (
            "weights past the horizon would turn negative"
            if any(name == "cosformer" for name in config.attentions)
            else "the model has not learned to read further"
        )
        raise ValueError(
            f"{new} tokens{held}, but the model's horizon is {config.horizon}: {why}. A horizon is part of what was "
            f"trained: use fewer tokens, or train with CosformerConfig(horizon={past + new}) or more"
        )


def check_mask(mask: Tensor | None, batch: int, new: int, past: int | Tensor) -> None:
    if mask is None:
        return
    if mask.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}: pass [B, S], 1 for real tokens and 0 for padding. A mask "
            "that differs by query cannot be had in linear time"
        )
    if mask.shape[0] != batch or (isinstance(past, int) and mask.shape[1] != past + new):
        cached = f" of which {past} are in the cache" if past else ""
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)} for {batch} rows of {past + new} tokens{cached}: "
            "it covers every token so far, those in the cache too"
        )


def check_target_start(mask: Tensor | None, new: int, cache: Cache | None) -> None:
    """The encoder was placed beside the first piece of the target: every row must have begun there."""
    if mask is None or mask.shape[1] == new or not isinstance(cache, EncoderDecoderCache):
        return
    early = mask[:, :-new].bool().any(-1) | ~mask.bool().any(-1)
    message = (
        "a row of decoder_attention_mask begins after the first piece of the target: feed the first real token of "
        "every row in the first piece"
    )
    if is_traced(mask):
        torch.ops.aten._assert_async.msg(early.all(), message)
    elif not early.all():
        raise ValueError(message)
