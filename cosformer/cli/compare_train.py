"""`cosformer compare train`: recipes trained in several variants; the quality that `compare report` shows."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cosformer.cli.models import refusals
from cosformer.cli.options import names, numbers, pairs
from cosformer.cli.queue_options import Attentions, Device, Fields, Folder, Jobs, Kept, Quiet, Seeds

if TYPE_CHECKING:
    from cosformer.training import Recipe


def train(
    recipes: Annotated[list[str], typer.Argument(help="Names of `cosformer recipes`, or .toml files.")],
    ablation: Annotated[str, typer.Option(help="Of the paper, with commas: features, cos, positions.")] = "",
    attentions: Attentions = "",
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Of your own: 'silu: model.feature_map=silu; model.mlp=silu'; may be repeated."),
    ] = None,
    seeds: Seeds = "0",
    before: Annotated[
        str, typer.Option(help="A recipe that every variant is trained by first; the others start from its model.")
    ] = "",
    data: Annotated[list[str] | None, typer.Option(help="RECIPE=PATH; may be repeated.")] = None,
    set_: Fields = None,
    set_before: Annotated[
        list[str] | None, typer.Option("--set-before", help="The same for the recipe of --before.")
    ] = None,
    out: Folder = Path("runs/compare-train"),
    jobs: Jobs = 1,
    device: Device = "auto",
    json_file: Kept = None,
    quiet: Quiet = False,
) -> None:
    """Train recipes in several variants and test them: the paper's ablations, attentions, or variants of your own.

    Interrupted, the same command goes on. The table is what `cosformer compare report --quality OUT` reads.
    """
    from cosformer.cli.queued import do_queue

    with refusals():
        from cosformer.sweeps import QueueSettings, jobs_of
        from cosformer.sweeps.ablations import variants_of
        from cosformer.sweeps.jobs import check_no_seed

        paths = pairs(data or [], "--data", "the recipe, =, and where its files are, such as classify-sst2=SST-2")
        first = [before] if before else []
        if lost := [name for name in paths if name not in (*recipes, *first)]:
            raise ValueError(f"--data {lost[0]}=…: that recipe is not among {', '.join([*first, *recipes])}")
        check_no_seed([*(set_ or []), *(set_before or [])])
        groups: dict[str, Recipe] = {}
        for name in recipes:
            group, recipe = _loaded(name, paths, set_)
            if group in groups:
                raise ValueError(
                    f'two recipes are called {group!r}: a group of the table each; write name = "…" into one of them'
                )
            groups[group] = recipe
        planned = jobs_of(
            groups,
            variants_of(names(ablation), names(attentions), variant or []),
            numbers(seeds, "--seeds"),
            before=dict(_loaded(name, paths, set_before) for name in first),
        )
        title = "ablations of the paper" if ablation and not attentions and not variant else "variants"
        settings = QueueSettings(name=title, parallel=jobs, device=device)
    do_queue(out, planned, settings, json_file=json_file, quiet=quiet)


def _loaded(name: str, paths: dict[str, str], assignments: list[str] | None) -> tuple[str, "Recipe"]:
    """Its group, which is the recipe's own name, and the recipe."""
    from cosformer.training import load_recipe

    own = [f"data.path={json.dumps([paths[name]])}"] if name in paths else []
    recipe = load_recipe(name, *(assignments or []), *own)
    return recipe.name, recipe
