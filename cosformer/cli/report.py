"""`cosformer report`: a run as one page."""

import os
from pathlib import Path
from typing import Annotated

import typer

from cosformer.cli.models import refusals


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="Where to write it (report.html in the run folder).")] = None,
) -> None:
    """Write one page with curves, samples, attention maps and settings of a run; it needs no network."""
    with refusals():
        from cosformer.models.writing import hide_bars
        from cosformer.report import write_report

        hide_bars()
        place = run if out is None else out.parent
        if place.is_dir() and not os.access(place, os.W_OK):
            raise OSError(f"{place} cannot be written: name another file with --out")
        path = write_report(run, out)
    typer.echo(f"wrote {path}")
