"""The tokenizer beside a model, which gives a text the ids that training gave it."""

import copy
from pathlib import Path
from typing import Any

from tokenizers.processors import TemplateProcessing

from cosformer.training.data import RunData, special_ids


def save_tokenizer(data: RunData, folder: Path) -> None:
    as_trained(data).save_pretrained(folder)


def as_trained(data: RunData) -> Any:
    """A copy that puts the marks of the task around a text, and knows how long one may be.

    Without them a classifier of <eos> at the end would be asked about texts such as it has never seen.
    """
    recipe = data.recipe
    tokenizer = copy.deepcopy(data.tokenizer)
    if not hasattr(tokenizer, "backend_tokenizer"):
        return tokenizer
    marks = special_ids(tokenizer)
    begin, end = (marks["bos"] if recipe.model.config.get("pooling") == "first" else None), marks["eos"]
    if recipe.task in ("lm", "mlm") or recipe.tokenizer.kind == "task":  # as it is: windows of a text have no marks
        begin = end = None
    tokenizer.backend_tokenizer.post_processor = _marking(tokenizer, begin, end)
    if recipe.task in ("classify", "translate"):
        tokenizer.model_max_length = recipe.data.length
    return tokenizer


def _marking(tokenizer: Any, begin: int | None, end: int | None) -> Any:
    if begin is None and end is None:
        return None
    first, last = ([] if mark is None else [tokenizer.convert_ids_to_tokens(mark)] for mark in (begin, end))
    return TemplateProcessing(
        single=[*first, "$A", *last], pair=[*first, "$A", *last, "$B", *last],
        special_tokens=[(name, tokenizer.convert_tokens_to_ids(name)) for name in dict.fromkeys([*first, *last])],
    )  # fmt: skip
