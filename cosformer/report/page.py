"""The page of a run: its sections, in order."""

from pathlib import Path

from cosformer.bench.report import write_whole
from cosformer.report.maps import maps_section
from cosformer.report.reading import Run, read_run
from cosformer.report.sections import (
    comparison,
    curves,
    environment,
    headline,
    numbers,
    samples,
    settings,
    speed,
    state,
)
from cosformer.report.shell import shell

NAME = "report.html"


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of a run, whole or not at all; where it lies."""
    out = out or folder / NAME
    write_whole(out, report_page(read_run(folder)).encode("utf-8", "replace"))
    return out


def report_page(run: Run) -> str:
    found = [
        ("numbers", "Key numbers", numbers(run) + comparison(run)),
        ("curves", "Learning curves", curves(run)),
        ("samples", "What it writes", samples(run)),
        ("maps", "What it attends to", maps_section(run)),
        ("speed", "Speed and memory against softmax", speed(run)),
        ("settings", "Settings", settings(run)),
        ("environment", "Data and machine", environment(run)),
    ]
    return shell(
        title=f"{run.name}: report of a run", kicker="cosformer · report of a run", heading=run.name,
        lead=headline(run), note=state(run), sections=found, source="the files of the run",
    )  # fmt: skip
