"""Refuses a config that makes no model: what, got, why, fix."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cosformer.models.kinds import KINDS, find_others
from cosformer.nn.mlp import ACTIVATIONS
from cosformer.ops.features import FEATURE_MAPS

if TYPE_CHECKING:
    from cosformer.models.configuration import CosformerConfig

POSITIONS = ("none", "learned", "sinusoidal", "rotary")
NORMS = ("rmsnorm", "layernorm")
NORMALIZERS = ("sum", "norm")
POOLINGS = ("mean", "first", "last")
LOSSES = ("softmax", "one_vs_each")


def check_config(config: CosformerConfig) -> None:
    _check_sizes(config)
    _check_choices(config)
    _check_attention(config)
    for name in ("hidden_dropout", "attention_dropout", "classifier_dropout", "label_smoothing"):
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)}: it is a probability; use a number from 0 to below 1")
    for name in ("rotary_base", "norm_eps"):
        if getattr(config, name) <= 0:
            raise ValueError(f"{name}={getattr(config, name)}: it must be positive")
    if config.initializer_range < 0:
        raise ValueError(
            f"initializer_range={config.initializer_range}: weights are drawn with this deviation; 0 for all 0"
        )
    _check_loss(config)
    if not config.residual_in_fp32 and not config.norm_first:
        raise ValueError(
            "residual_in_fp32=False with norm_first=False: there the norms lie between the blocks, and they give fp32; "
            "use norm_first=True, or leave residual_in_fp32 as it is"
        )
    if config.type_vocab_size < 0:
        raise ValueError(f"type_vocab_size={config.type_vocab_size}: use 0 for no token types")
    if config.learned_positions and (config.positions != "learned" or config.learned_positions < config.horizon):
        raise ValueError(
            f"learned_positions={config.learned_positions} with positions={config.positions!r} and "
            f"horizon={config.horizon}: it counts learned positions, at least one for each token; use 0 for just these"
        )
    if config.classifier_hidden_size < 0:
        raise ValueError(f"classifier_hidden_size={config.classifier_hidden_size}: a width; 0 for no such layer")


def _check_loss(config: CosformerConfig) -> None:
    if config.loss not in LOSSES:
        raise ValueError(f"loss={config.loss!r} is unknown: use one of {', '.join(LOSSES)}")
    if config.loss_samples < 0:
        raise ValueError(f"loss_samples={config.loss_samples}: it counts words to compare with; 0 for all")
    if config.loss == "softmax":
        if config.loss_samples:
            raise ValueError(
                f"loss_samples={config.loss_samples} with loss='softmax': it is of one_vs_each alone; use 0"
            )
        return
    if not config.causal or config.is_encoder_decoder or config.add_cross_attention:
        raise ValueError("loss='one_vs_each' is for causal language models (causal=True, one stack): use softmax here")
    if config.label_smoothing:
        raise ValueError(f"loss='one_vs_each' with label_smoothing={config.label_smoothing}: the bound has none; use 0")


def _check_sizes(config: CosformerConfig) -> None:
    sizes = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "intermediate_size",
    )  # fmt: skip
    for name in sizes:
        size = getattr(config, name)
        if size is None or size < 1:
            raise ValueError(f"{name}={size}: it must be positive")
    if config.horizon < 1:
        raise ValueError(
            f"horizon={config.horizon}: it counts tokens and must cover the longest sequence the model will ever see"
        )
    assert config.num_key_value_heads is not None
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError(
            f"num_attention_heads={config.num_attention_heads} with num_key_value_heads={config.num_key_value_heads}: "
            "each key/value head serves equally many heads, so the first must be a multiple of the second"
        )
    assert config.head_dim is not None
    if config.positions == "rotary" and config.head_dim % 2:
        raise ValueError(
            f"positions='rotary' with head_dim={config.head_dim}: numbers are turned in pairs; choose an even width"
        )


def _check_choices(config: CosformerConfig) -> None:
    choices = {
        "positions": POSITIONS, "norm": NORMS, "mlp": tuple(ACTIVATIONS), "feature_map": tuple(FEATURE_MAPS),
        "normalizer": NORMALIZERS, "pooling": POOLINGS,
    }  # fmt: skip
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ValueError(f"{name}={getattr(config, name)!r} is unknown: {_chosen(getattr(config, name), allowed)}")


def _chosen(name: object, known: Iterable[str]) -> str:
    """Of a misspelt choice: what it may have meant, and all there are."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 1)
    return f"{f'did you mean {near[0]}? ' if near else ''}use one of {', '.join(names)}"


def _check_attention(config: CosformerConfig) -> None:
    if isinstance(config.attention, list) and len(config.attention) != config.num_hidden_layers:
        raise ValueError(
            f"attention names {len(config.attention)} blocks but num_hidden_layers={config.num_hidden_layers}: "
            "give one name for each block, or a single name for all"
        )
    for name in config.attentions:
        if name not in KINDS:
            find_others()
        if name not in KINDS:
            raise ValueError(
                f"attention={name!r} is unknown: {_chosen(name, KINDS)}, or register it "
                "(cosformer.models.register_attention)"
            )
        kind = KINDS[name]
        if (config.causal or config.is_encoder_decoder) and not kind.causal_too:
            why = f"{kind.why_not_causal}; " if kind.why_not_causal else ""
            raise ValueError(f"attention={name!r} cannot be causal: {why}use it in an encoder (causal=False)")
        if (config.is_encoder_decoder or config.add_cross_attention) and not kind.across_too:
            raise ValueError(f"attention={name!r} has no cross attention: use it in an encoder or a decoder alone")
    _check_options(config)


def _check_options(config: CosformerConfig) -> None:
    kinds = {name: KINDS[name] for name in config.attentions}
    known = {field.name: None for kind in kinds.values() for field in dataclasses.fields(kind.Options)}
    for name in config.attention_options or {}:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known) or 'none'}"
            raise ValueError(f"attention_options has {name!r}, unknown to attention={config.attention!r}: {fix}")
    for kind in kinds.values():
        kind.options_of(config)
        kind.check(config)
