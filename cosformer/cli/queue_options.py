"""Options of every verb that queues runs. Apart from `queued`, which loads the models: help should not."""

from pathlib import Path
from typing import Annotated

import typer

Attentions = Annotated[str, typer.Option(help="With commas; any that a config may name.")]
Seeds = Annotated[str, typer.Option(help="With commas: one run each.")]
Fields = Annotated[
    list[str] | None, typer.Option("--set", help="Any field of the recipes, as train.steps=500; may be repeated.")
]
Folder = Annotated[Path, typer.Option(help="Folder of the queue; what is done in it is not done again.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Kept = Annotated[Path | None, typer.Option("--json", help="Write the table here too.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing but errors and the table.")]
