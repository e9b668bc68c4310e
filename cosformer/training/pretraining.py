"""Self-pretraining (Amos et al. 2023): before a model is trained on a task, it guesses masked tokens of its inputs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe
from cosformer.training.run import train
from cosformer.training.run_folder import RunSummary, check_new, stored_recipe


def self_pretraining(recipe: Recipe) -> Recipe:
    """The recipe that comes first: the same data, model and batches, masked tokens instead of classes."""
    wanted = recipe.pretrain
    if recipe.task != "classify":
        raise BadRecipe(
            f"--pretrain is for task='classify', got {recipe.task!r}: language models learn from text anyway"
        )
    if recipe.model.init:
        raise BadRecipe(f"--pretrain with model.init={recipe.model.init!r}: a model starts from one of the two")
    if not wanted.steps:
        raise BadRecipe(f"recipe {recipe.name!r} has no pre-training: set pretrain.steps")
    settings = replace(
        recipe.train, steps=wanted.steps, epochs=0.0, batch=wanted.batch or recipe.train.batch,
        learning_rate=wanted.learning_rate or recipe.train.learning_rate,
        warmup_steps=wanted.warmup_steps or recipe.train.warmup_steps,
    )  # fmt: skip
    data = replace(recipe.data, apart=False)
    if data.source == "hub":  # read as text there, a column of it
        column, *more = data.columns
        if more:
            raise BadRecipe("--pretrain with data.source='hub' reads one column: save the pairs as a table of your own")
        data = replace(data, column=column)
    return replace(recipe, name=f"{recipe.name}-pretrain", task="mlm", data=data, train=settings)


def pretrain_folder(out: Path) -> Path:
    """Beside it; where it is named without a name («.»), by the name it has."""
    out = out if out.name not in ("", "..") else out.resolve()
    return out.with_name(f"{out.name}-pretrain")


def starting_from(recipe: Recipe, folder: Path) -> Recipe:
    """Absolute, so that a run goes on from wherever the next command is given."""
    folder = folder.absolute()
    return recipe.with_values([f"model.init={json.dumps(str(folder))}"])


def train_pretrained(recipe: Recipe, out: str | Path, *, resume: bool = False, **options: Any) -> RunSummary:
    """Two runs, OUT-pretrain and then OUT, which starts from it; options as for train().

    resume: goes on with whichever is not finished. The summary of the second, or of the first if it was interrupted.
    """
    out = Path(out)
    if not resume:
        check_new(out)
    elif (stored := stored_recipe(out)) is not None and not stored.model.init:  # known before the first run, not after
        raise ValueError(
            f"{out} holds a run without pre-training: leave --pretrain out, or name another folder (--out)"
        )
    before = train(self_pretraining(recipe), pretrain_folder(out), resume=resume, then=recipe, **options)
    if before.interrupted:
        return before
    return train(starting_from(recipe, pretrain_folder(out)), out, resume=resume, **options)
