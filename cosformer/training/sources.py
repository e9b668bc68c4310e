"""From the data section of a recipe to a source of text or examples."""

import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cosformer.tasks import (
    NAMED,
    ExampleFiles,
    ExampleSource,
    HubExamples,
    HubText,
    Source,
    SourceMissing,
    TextFiles,
    TextSource,
    open_source,
)
from cosformer.training.checkpoint import NAME as CHECKPOINT
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe, chosen
from cosformer.training.recipe_sections import DataRecipe

OWN = ("text", "examples", "hub")
GENERATED = ("lra-listops", "lra-pathfinder")


READS = {
    "text": ("valid_path", "test_path", "column", "columns", "document"),
    "examples": ("valid_path", "test_path", "column", "columns", "label", "classes"),
    "hub": ("column", "columns", "label", "classes", "config", "revision"), "multi30k": ("languages",),
    "lra-listops": ("sizes", "seed"), "lra-pathfinder": ("sizes", "seed", "skip_black"), "lra-image": ("skip_black",),
}  # fmt: skip
"""Fields of the data section that say what a source is, beside its path, or how it is read: those of one would mean
nothing to another."""


def placed(recipe: Recipe) -> Recipe:
    """With whole paths: a run goes on, and its recipe makes it again, from any folder."""

    def whole(path: str) -> str:
        return os.path.abspath(os.path.expanduser(path))

    data, tokenizer, model = recipe.data, recipe.tokenizer, recipe.model
    if data.source != "hub":
        own: dict[str, Any] = {
            name: tuple(map(whole, getattr(data, name))) for name in ("path", "valid_path", "test_path")
        }
        data = replace(data, **own)
    if tokenizer.path and Path(tokenizer.path).expanduser().exists():
        tokenizer = replace(tokenizer, path=whole(tokenizer.path))
    if model.init:
        model = replace(model, init=whole(model.init))
    return replace(recipe, data=data, tokenizer=tokenizer, model=model)


def named(recipe: Recipe) -> Recipe:
    """With names for paths: a card is read by others, to whom the folders of this machine say nothing."""

    def name(path: str) -> str:
        whole = Path(path).expanduser().absolute()
        return f"{whole.parent.name}/{whole.name}" if CHECKPOINT.fullmatch(whole.name) else whole.name

    data, tokenizer, model = recipe.data, recipe.tokenizer, recipe.model
    if data.source != "hub":
        own: dict[str, Any] = {
            field: tuple(map(name, getattr(data, field))) for field in ("path", "valid_path", "test_path")
        }
        data = replace(data, **own)
    if tokenizer.path:
        tokenizer = replace(tokenizer, path=name(tokenizer.path))
    if model.init:
        model = replace(model, init=name(model.init))
    return replace(recipe, data=data, tokenizer=tokenizer, model=model)


def check_read(data: DataRecipe) -> None:
    """Refuses what would be passed over in silence."""
    usual = {field.name: field.default for field in fields(DataRecipe)}
    for name in sorted({name for names in READS.values() for name in names}):
        given = getattr(data, name)
        if given != usual[name] and name not in READS.get(data.source, ()):
            takers = ", ".join(source for source, names in READS.items() if name in names)
            shown = list(given) if isinstance(given, tuple) else given
            raise BadRecipe(
                f"data.{name}={shown!r} says nothing to data.source={data.source!r}, only to {takers}: leave it out"
            )


def source_of(recipe: Recipe) -> Source:
    """The source a recipe names, opened; refuses one that does not fit the task."""
    data = recipe.data
    if data.source in OWN:
        source = _own(data, recipe.task)
    elif data.source in NAMED:
        if len(data.path) > 1:
            raise BadRecipe(f"data.path={list(data.path)}: {data.source} lies in one place; name one")
        options: dict[str, Any] = {}
        if data.source == "multi30k":
            options = dict(zip(("source", "target"), data.languages, strict=True))
        elif data.source in GENERATED:
            options = {"seed": data.seed, **({"sizes": data.sizes} if data.sizes else {})}
        source = open_source(data.source, data.path[0] if data.path else None, **options)
    else:
        raise BadRecipe(f"data.source={data.source!r} is unknown: {chosen(data.source, [*NAMED, *OWN])}")
    wanted = {"lm": TextSource, "mlm": (TextSource, ExampleSource)}.get(recipe.task, ExampleSource)
    if not isinstance(source, wanted):
        kinds = {"lm": "running text", "classify": "labelled examples", "translate": "pairs"}
        raise BadRecipe(f"data.source={data.source!r} with task={recipe.task!r}: the task reads {kinds[recipe.task]}")
    if isinstance(source, ExampleSource):
        if recipe.task == "classify" and not source.classes:
            raise BadRecipe(f"data.source={data.source!r} has no classes: classify needs labels")
        if recipe.task == "translate" and source.texts != 2:
            raise BadRecipe("translate needs two texts per example: name a source and a target with data.columns")
    return source


def _own(data: DataRecipe, task: str) -> Source:
    if not data.path:
        what = "the name of a data set" if data.source == "hub" else "files, folders or patterns"
        raise SourceMissing(f"data.source={data.source!r}, and no path was given: name {what} with --data")
    text = task in ("lm", "mlm")
    # masked tokens of labelled examples are of the same rows and splits as their classes (--pretrain)
    label = data.label if task in ("classify", "mlm") else None
    if data.source == "hub":
        if data.path[1:]:
            raise BadRecipe(f"data.path={list(data.path)}: a hub data set has one name; its splits are its own")
        name, config = data.path[0], data.config or None
        options: dict[str, Any] = {"revision": data.revision or None}
        if text:
            return HubText(name, config, column=data.column, **options)
        return HubExamples(name, config, columns=data.columns, label=label, classes=data.classes, **options)
    valid, test = data.valid_path or None, data.test_path or None
    if data.source == "text":
        return TextFiles(data.path, valid=valid, test=test, column=data.column, document=data.document)
    return ExampleFiles(
        data.path, valid=valid, test=test, columns=data.columns, label=label, classes=data.classes or None
    )


def file_name(source: Source) -> str:
    """The name of a source as part of a file name: those of a hub have slashes."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", source.name)


def place_of(data: DataRecipe) -> list[str]:
    """What tells two sources of one name apart in a cache."""
    paths = [*data.path, "|", *data.valid_path, "|", *data.test_path]
    there = [str(Path(p).expanduser().resolve()) if data.source != "hub" and p != "|" else p for p in paths]
    return [data.source, *there, data.document, data.column, *data.columns, data.label, *data.classes, data.config,
            data.revision, *data.languages, *map(str, data.sizes), str(data.seed)]  # fmt: skip
