"""`cosformer report`: a run as one page."""

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
        from cosformer.report import write_report

        path = write_report(run, out)
    typer.echo(f"wrote {path}")
