"""`cosformer lra`: the Long-Range Arena, as a queue of runs and a table."""

from pathlib import Path
from typing import Annotated

import typer

from cosformer.cli.models import refusals
from cosformer.cli.options import names, numbers, pairs
from cosformer.cli.queue_options import Attentions, Device, Fields, Folder, Jobs, Kept, Quiet, Seeds

app = typer.Typer(no_args_is_help=True, help="The Long-Range Arena: runs of many attentions, and their table.")


@app.command()
def run(
    tasks: Annotated[str, typer.Option(help="With commas: listops, text, retrieval, image, pathfinder.")] = (
        "listops,text,retrieval,image,pathfinder"
    ),
    attentions: Attentions = "cosformer,cosformer_nocos,softmax,linear,performer,linformer",
    seeds: Seeds = "0",
    data: Annotated[
        list[str] | None, typer.Option(help="TASK=PATH of text, retrieval and image; a task without is skipped.")
    ] = None,
    large: Annotated[bool, typer.Option("--large", help="The larger configuration.")] = False,
    pretrain: Annotated[
        bool, typer.Option("--pretrain", help="First guess masked tokens of the task's own inputs.")
    ] = False,
    set_: Fields = None,
    out: Folder = Path("runs/lra"),
    jobs: Jobs = 1,
    device: Device = "auto",
    json_file: Kept = None,
    quiet: Quiet = False,
) -> None:
    """Train and test every task with every attention and seed. Interrupted, the same command goes on.

    Validation is never test: weights are chosen on the first, the table has the second.
    """
    from cosformer.cli.queued import do_queue

    with refusals():
        from cosformer.sweeps import QueueSettings, attention_variants, jobs_of
        from cosformer.sweeps.arena import arena_recipes

        paths = pairs(data or [], "--data", "the task, =, and where its files are, such as text=aclImdb")
        recipes = arena_recipes(names(tasks), large=large, data=paths, assignments=set_ or [])
        planned = jobs_of(recipes, attention_variants(names(attentions)), numbers(seeds, "--seeds"), pretrain=pretrain)
        settings = QueueSettings(name="Long-Range Arena", parallel=jobs, device=device)
    do_queue(out, planned, settings, json_file=json_file, quiet=quiet)


@app.command()
def table(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of queues, or tables that were kept (runs/lra).")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="For documents.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Print the table of a queue, also while it runs; of several queues, one table."""
    from cosformer.cli.queued import print_table

    with refusals():
        from cosformer.sweeps.table import merged, read_table

        found = merged([read_table(folder) for folder in folders or [Path("runs/lra")]])
    print_table(found, markdown=markdown, as_json=as_json)
