"""The model of a run: new, or from a folder with a head of its own."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from cosformer.models import (
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForPairClassification,
    CosformerForSequenceClassification,
)
from cosformer.models.tokenizers import byte_tokenizer
from cosformer.models.writing import read_config
from cosformer.tasks import LraSource
from cosformer.training.data import RunData, special_ids
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe
from cosformer.training.recipe_sections import TokenizerRecipe, model_fields

HEADS = ("score.", "hidden.", "pair.", "lm_head.")
"""What may be new in a model that starts from another."""
KEPT = (
    "hidden_dropout", "attention_dropout", "classifier_dropout", "label_smoothing", "pooling", "classifier_hidden_size",
)  # fmt: skip
"""Fields that the recipe decides even so; the shape is that of the model started from."""


def class_for(recipe: Recipe) -> Any:
    if recipe.task == "classify":
        return CosformerForPairClassification if recipe.data.apart else CosformerForSequenceClassification
    return {
        "lm": CosformerForCausalLM, "mlm": CosformerForMaskedLM, "translate": CosformerForConditionalGeneration,
    }[recipe.task]  # fmt: skip


def config_for(recipe: Recipe, data: RunData) -> CosformerConfig:
    """What the recipe, the tokenizer and the task say together."""
    ids = special_ids(data.tokenizer)
    longest = max(recipe.data.length, recipe.data.target_length)
    given: dict[str, Any] = {
        "vocab_size": data.vocab_size, "pad_token_id": ids["pad"], "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
    }  # fmt: skip
    if recipe.task == "classify":
        given |= {"id2label": dict(enumerate(data.classes)), "label2id": {c: i for i, c in enumerate(data.classes)}}
    if recipe.task == "translate":
        given["decoder_start_token_id"] = ids["pad"] if ids["bos"] is None else ids["bos"]
    if recipe.model.init:
        return _config_from(recipe, data, given, longest)
    try:
        config = CosformerConfig(
            causal=recipe.task in ("lm", "translate"), is_encoder_decoder=recipe.task == "translate",
            **{"horizon": longest, **_places(recipe, data), **recipe.model.config}, **given,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise BadRecipe(f"model: {error}") from error
    _check_horizon(config, longest)
    _check_places(config, data)
    return config


def _config_from(recipe: Recipe, data: RunData, given: dict[str, Any], longest: int) -> CosformerConfig:
    folder = Path(recipe.model.init).expanduser()
    config = read_config(folder)
    wanted = recipe.model.config.get("attention", "cosformer")
    kinds = [wanted] * config.num_hidden_layers if isinstance(wanted, str) else list(wanted)
    if kinds != config.attentions:
        raise BadRecipe(
            f"model.init={recipe.model.init!r} has attention={config.attention!r}, the recipe {wanted!r}: weights of "
            f"one are not those of the other; --set model.attention={config.attentions[0]}, or start from another"
        )
    if recipe.task in ("lm", "mlm", "classify") and config.is_encoder_decoder:
        raise BadRecipe(f"model.init={recipe.model.init!r} is an encoder–decoder: it translates and nothing else")
    if recipe.task == "translate" and not config.is_encoder_decoder:
        raise BadRecipe(
            f"model.init={recipe.model.init!r} is a single stack of blocks, and task='translate' needs an "
            "encoder–decoder: start from a run of the same task, or leave it out"
        )
    if recipe.task in ("lm", "mlm") and config.causal != (recipe.task == "lm"):
        raise BadRecipe(
            f"model.init={recipe.model.init!r} has causal={config.causal}: it does not fit task={recipe.task!r}"
        )
    for name, value in given.items():
        if name != "vocab_size":
            setattr(config, name, value)
    for name in KEPT:
        if name in recipe.model.config:
            setattr(config, name, recipe.model.config[name])
    if config.has_longest and config.horizon < longest:
        raise BadRecipe(
            f"sequences of {longest} tokens, and the model in model.init={recipe.model.init!r} has "
            f"horizon={config.horizon}, for which it was trained: use data.length={config.horizon} or less"
        )
    _check_places(config, data)
    return config


def overruled(recipe: Recipe, config: CosformerConfig) -> str:
    """In words, the fields of the recipe that the model started from has otherwise; nothing without one."""
    if not recipe.model.init:
        return ""
    asked = {name: value for name, value in recipe.model.config.items() if name not in (*KEPT, "attention")}
    other = [
        f"{name}={getattr(config, name)} (recipe: {value})"
        for name, value in asked.items()
        if (value or None) != (getattr(config, name) or None)
    ]
    return f"the shape is that of model.init: {', '.join(other)}" if other else ""


def overruled_tokenizer(recipe: Recipe, tokenizer: Any) -> str:
    """In words, where the tokenizer of the model started from is not what the recipe asks for."""
    asked, taken = recipe.tokenizer, _taken(recipe, tokenizer)
    if asked.kind == "bpe" and asked.vocab_size == len(tokenizer):
        return ""  # as far as one can tell
    if asked.kind == taken.kind and Path(asked.path).expanduser().resolve() == Path(taken.path).expanduser().resolve():
        return ""
    more = {"bytes": "", "path": f", path={asked.path}"}.get(asked.kind, f", vocab_size={asked.vocab_size}")
    return f"the tokenizer is that of model.init, of {len(tokenizer):,} tokens (recipe: kind={asked.kind}{more})"


def _taken(recipe: Recipe, tokenizer: Any) -> TokenizerRecipe:
    """How it was learned is not known of one that a model brings: it is recorded as the one of that folder."""
    if not recipe.model.init or recipe.tokenizer.kind == "task":  # whose ids were checked
        return recipe.tokenizer
    if _plain_vocabulary(tokenizer) == _plain_vocabulary(byte_tokenizer()):
        return TokenizerRecipe(kind="bytes")
    return TokenizerRecipe(kind="path", path=recipe.model.init, vocab_size=len(tokenizer))


def _plain_vocabulary(tokenizer: Any) -> dict[str, int]:
    """Without marks and masks, which depend on the task."""
    return {token: i for token, i in tokenizer.get_vocab().items() if token not in tokenizer.all_special_tokens}


def _check_horizon(config: CosformerConfig, longest: int) -> None:
    if config.has_longest and config.horizon < longest:
        raise BadRecipe(
            f"sequences of {longest} tokens and model.horizon={config.horizon}: the horizon covers the longest; set "
            f"model.horizon={longest}, or a shorter data.length"
        )


def _places(recipe: Recipe, data: RunData) -> dict[str, int]:
    """Learned positions for all pixels, where only the lit ones are tokens."""
    if not recipe.data.skip_black or recipe.model.config.get("positions") != "learned":
        return {}
    assert isinstance(data.source, LraSource)  # others have no black pixels
    return {"learned_positions": data.source.length}


def _check_places(config: CosformerConfig, data: RunData) -> None:
    """A lit pixel has the place it has in the whole picture."""
    if not data.recipe.data.skip_black:
        return
    assert isinstance(data.source, LraSource)
    places, rows = data.source.length, config.learned_positions or config.horizon
    instead = f"or read all pixels: data.skip_black=false, data.length={places}, model.horizon={places}"
    if config.positions == "none":
        raise BadRecipe(
            f"data.skip_black with positions='none': nothing would tell where a pixel is; set some, {instead}"
        )
    if config.positions == "learned" and rows < places:
        raise BadRecipe(
            f"data.skip_black, pictures of {places:,} pixels and {rows:,} learned positions: each pixel needs its own; "
            f"start from a model with model.learned_positions={places}, {instead}"
        )


def make_model(recipe: Recipe, data: RunData) -> Any:
    """Weights drawn by the recipe's seed. Of a model started from, all but the head must be there."""
    config, cls = config_for(recipe, data), class_for(recipe)
    config.architectures = [cls.__name__]
    torch.manual_seed(recipe.seed)
    if not recipe.model.init:
        return cls(config)
    folder = Path(recipe.model.init).expanduser()
    model, info = cls.from_pretrained(
        folder, config=config, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
    )  # a head of other classes is new too
    other = {name for name, *_ in info["mismatched_keys"]}
    if lost := sorted(name for name in other | set(info["missing_keys"]) if not name.startswith(HEADS)):
        raise BadRecipe(
            f"model.init={recipe.model.init!r} lacks {', '.join(lost[:5])}: it is not a whole {cls.__name__}"
        )
    if any(name.startswith("hidden.") for name in {*info["missing_keys"], *info["unexpected_keys"]}):
        nn.init.normal_(model.score.weight, std=config.initializer_range)  # what it had read something else
        nn.init.zeros_(model.score.bias)
    return model


def resolved(recipe: Recipe, config: CosformerConfig, tokenizer: Any) -> Recipe:
    """The recipe with every field of the model, and the tokenizer, as they came to be."""
    fields = {name: getattr(config, name) for name in model_fields()}
    model = replace(recipe.model, config=MappingProxyType(fields))
    return replace(recipe, model=model, tokenizer=_taken(recipe, tokenizer))
