"""The tokenizer beside a model, which gives a text the ids that training gave it."""

import copy
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from cosformer.models.tokenizers import put_around
from cosformer.training.data import RunData, special_ids

NO_LIMIT = int(1e30)  # as transformers says it


def save_tokenizer(data: RunData, folder: Path) -> None:
    as_trained(data).save_pretrained(folder)


def as_trained(data: RunData) -> Any:
    """A copy that puts the marks of the task around a text, and knows how long one may be.

    Without them a classifier of <eos> at the end would be asked about texts such as it has never seen.
    """
    recipe = data.recipe
    tokenizer = _of_no_kind(copy.deepcopy(data.tokenizer))
    begin = end = None  # of windows of a text, and of a task's own tokens
    if recipe.task in ("classify", "translate") and recipe.tokenizer.kind != "task":
        marks, pooling = special_ids(tokenizer), recipe.model.config.get("pooling")
        begin, end = marks["bos"] if recipe.task == "classify" and pooling == "first" else None, marks["eos"]
    put_around(tokenizer, begin, end)
    # of a language model, which goes on past what a step of training read, as far as it can
    longest = recipe.model.config.get("horizon") if recipe.task == "lm" else recipe.data.length
    tokenizer.model_max_length = longest or NO_LIMIT
    return tokenizer


def _of_no_kind(tokenizer: Any) -> Any:
    """One of BERT's kind, say, would put BERT's own marks back when it is read: only the inner part is kept."""
    if type(tokenizer) is PreTrainedTokenizerFast:
        return tokenizer
    kept = (
        "padding_side", "truncation_side", "model_input_names", "clean_up_tokenization_spaces",
        "split_special_tokens", "model_max_length",
    )  # fmt: skip
    settings = {name: getattr(tokenizer, name) for name in kept}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, **settings, **tokenizer.special_tokens_map
    )
