"""The tokenizer beside a model, which gives a text the ids that training gave it."""

import copy
from pathlib import Path
from typing import Any

from cosformer.models.tokenizers import put_around
from cosformer.training.data import RunData, special_ids


def save_tokenizer(data: RunData, folder: Path) -> None:
    as_trained(data).save_pretrained(folder)


def as_trained(data: RunData) -> Any:
    """A copy that puts the marks of the task around a text, and knows how long one may be.

    Without them a classifier of <eos> at the end would be asked about texts such as it has never seen.
    """
    recipe = data.recipe
    tokenizer = copy.deepcopy(data.tokenizer)
    begin = end = None  # of windows of a text, and of a task's own tokens
    if recipe.task in ("classify", "translate") and recipe.tokenizer.kind != "task":
        marks, pooling = special_ids(tokenizer), recipe.model.config.get("pooling")
        begin, end = marks["bos"] if recipe.task == "classify" and pooling == "first" else None, marks["eos"]
    put_around(tokenizer, begin, end)
    if recipe.task in ("classify", "translate"):
        tokenizer.model_max_length = recipe.data.length
    return tokenizer
