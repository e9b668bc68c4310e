"""`cosformer train`: a recipe becomes a model in a folder."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cosformer.cli.models import refusals


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A name of `cosformer recipes`, or a .toml file. Not needed with --resume.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Where the data is: a file, folder or pattern; may be repeated.")
    ] = None,
    valid_data: Annotated[list[str] | None, typer.Option(help="Your own files to validate on.")] = None,
    test_data: Annotated[list[str] | None, typer.Option(help="Your own files to test on.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Column of text in your tables; twice for pairs (text).")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column of the class in your tables (label).")] = None,
    classes: Annotated[str | None, typer.Option(help="Names of the classes, with commas.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (runs/RECIPE).")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any field, as in model.attention=softmax; may be repeated.")
    ] = None,
    pretrain: Annotated[
        bool,
        typer.Option(
            "--pretrain", help="First guess masked tokens of the same inputs, in OUT-pretrain (\\[pretrain])."
        ),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    cache: Annotated[Path | None, typer.Option(help="Folder for prepared data (data-cache beside --out).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors and the end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print run.json at the end.")] = False,
) -> None:
    """Train a recipe, on the data it names or on yours.

    In several processes: torchrun --nproc-per-node 2 -m cosformer.cli.main train …, or accelerate launch.
    """
    assignments = list(set_ or [])
    for field, values in (("path", data), ("valid_path", valid_data), ("test_path", test_data), ("columns", column)):
        if values:
            assignments.append(f"data.{field}={json.dumps(values)}")
    if column and len(column) == 1:
        assignments.append(f"data.column={json.dumps(column[0])}")
    if label is not None:
        assignments.append(f"data.label={json.dumps(label)}")
    if classes is not None:
        assignments.append(f"data.classes={json.dumps([name.strip() for name in classes.split(',')])}")
    if recipe is None and not resume:
        raise typer.BadParameter("name a recipe (`cosformer recipes` lists them), or go on with --out RUN --resume")
    if recipe is None and pretrain:
        raise typer.BadParameter("--pretrain goes on by the recipe: give the same command again, with --resume")
    if recipe is None and out is None:
        raise typer.BadParameter("--resume without a recipe: name the run's folder with --out")
    first = int(os.environ.get("RANK", "0")) == 0
    console = Console(stderr=True, quiet=quiet or not first)
    with refusals():
        from cosformer.training import NotFinite, Recipe, load_recipe, train_pretrained
        from cosformer.training import train as train_recipe
        from cosformer.training.run_folder import stored_recipe

        wanted: Recipe | None
        if recipe is not None:
            wanted = load_recipe(recipe, *assignments)
            folder = out or Path("runs") / wanted.name
        else:
            assert out is not None
            folder, wanted = out, stored_recipe(out)
            wanted = wanted.with_values(assignments) if wanted is not None and assignments else None
    from cosformer.cli.watching import Shown

    try:
        watch = Shown(console) if first else None
        if pretrain:
            assert wanted is not None
            summary = train_pretrained(wanted, folder, resume=resume, cache=cache, device=device, watch=watch)
        else:
            summary = train_recipe(wanted, folder, resume=resume, cache=cache, device=device, watch=watch)
    except NotFinite as error:
        Console(stderr=True).print(str(error), markup=False, highlight=False)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        again = "the same command"
        if pretrain:
            again += " and --resume"
        elif (folder / "recipe.toml").is_file():
            again = f"cosformer train --out {folder} --resume"
        words = f"stopped; what was prepared is kept; go on with: {again}"
        Console(stderr=True).print(words, markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except (ImportError, OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if not first:
        return
    if as_json:
        typer.echo(json.dumps({**vars(summary)}, ensure_ascii=False, indent=1))
    if summary.interrupted:
        again = "the same command and --resume" if pretrain else f"cosformer train --out {folder} --resume"
        line = f"stopped after step {summary.steps:,}, which is saved; go on with: {again}"
        Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130)
    if not as_json:
        shown = ", ".join(
            f"{name} {value:.4g}" for name, value in summary.metrics.items() if name not in ("tokens", "examples")
        )
        typer.echo(f"{folder}: {shown}; {summary.seconds:,.0f} s of training")
