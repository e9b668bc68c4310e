"""How a queue of runs is shown, and its table: shared by the verbs that queue."""

import contextlib
import errno
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cosformer.bench.report import write_json
from cosformer.cli.watching import harmless
from cosformer.sweeps import Job, QueueSettings, Running, markdown_table, run_queue
from cosformer.sweeps.outcomes import FAILED
from cosformer.sweeps.queue import done_in
from cosformer.sweeps.table import TABLE, beside, heading, places, read_table, shown


class QueueShown:
    """A line for each job that ends; on a terminal, those under way below."""

    def __init__(self, console: Console, total: int, ended: set[str]) -> None:
        self.console, self.total, self.names = console, total, ended
        self.live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def looked(self, running: list[Running], left: int) -> None:
        if self.live is None:
            return
        lines = [f"{len(running)} under way, {left} to come"]
        for one in running:
            minutes, seconds = divmod(round(time.monotonic() - one.begin), 60)
            lines.append(f"  {one.job.name}  {minutes}:{seconds:02}  {harmless(one.last_words)}")
        self.live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))

    def ended(self, job: Job, outcome: dict[str, Any]) -> None:
        self.names.add(job.name)
        words = outcome["why"]
        if outcome["state"] == "done":
            number = "not measured" if outcome["value"] is None else f"{outcome['value']:.4g}"
            words = f"{outcome['split']} {outcome['metric'].replace('_', ' ')} {number}"
            if outcome["steps_per_second"]:
                words += f"; {outcome['steps_per_second']:.1f} steps/s"
        self.console.print(
            f"{len(self.names)}/{self.total} {job.name}: {outcome['state']}: {harmless(words)}", markup=False,
            highlight=False, soft_wrap=True,
        )  # fmt: skip


def do_queue(folder: Path, jobs: list[Job], settings: QueueSettings, *, json_file: Path | None, quiet: bool) -> None:
    """Runs it, prints the table, and ends with 130 if interrupted, with 1 if a job failed."""
    console = Console(stderr=True, quiet=quiet)

    def said(words: str) -> None:
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    try:
        _check_json(json_file)
        done = done_in(folder, jobs)
        said(f"{len(jobs)} runs in {folder}" + (f", {len(done)} of them done" if done else ""))
        view = QueueShown(console, len(jobs), done)
        with view.live or contextlib.nullcontext():
            whole = run_queue(folder, jobs, settings, looked=view.looked, ended=view.ended)
        found = read_table(folder)
    except KeyboardInterrupt:  # the second one: jobs had no time for a checkpoint
        Console(stderr=True).print("stopped at once; the same command goes on from the last checkpoints")
        raise typer.Exit(130) from None
    except (OSError, ValueError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        words = f"{folder}: the disk is full: free some of it, and give the same command again; what is done stays done"
        raise typer.BadParameter(words if full else str(error)) from error
    print_table(found)
    if json_file is not None:
        write_json(json_file, found)
        said(f"wrote {json_file}")
    said(f"wrote {folder / TABLE}")
    if not whole:
        typer.echo("stopped; the same command goes on with what is left", err=True)
        raise typer.Exit(130)
    asked = {job.name for job in jobs}
    if any(cell["state"] == FAILED for cell in found["cells"] if cell["run"] in asked):
        typer.echo(f"some runs failed; what they said is in {folder / 'logs'}", err=True)
        raise typer.Exit(1)


def _check_json(path: Path | None) -> None:
    """Before hours of training, not after."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise OSError("it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"{path} cannot be written ({error.strerror or error}): name another file", param_hint="--json"
        ) from error


def print_table(found: dict[str, Any], *, markdown: bool = False, as_json: bool = False) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    if markdown:
        typer.echo(markdown_table(found), nl=False)
        return
    title = found["name"] + (f" ({beside(found)})" if beside(found) else "")
    table = Table(title=title)
    for name in ("group", "variant", "result", "seeds", "steps/s", "memory, MiB"):
        table.add_column(name, justify="left" if name in ("group", "variant", "result") else "right")
    for row in found["table"]:
        rate, memory = row.get("steps_per_second"), row.get("memory_bytes")
        table.add_row(
            heading(found, row["group"]), row["variant"], Text(shown(row)), str(row["seeds"]),
            f"{rate:.1f}" if rate else "", f"{memory / 2**20:,.0f}" if memory else "",
        )  # fmt: skip
    out = Console()
    out = out if out.is_terminal else Console(width=160)
    out.print(table)
    if places(found):
        out.print(places(found), markup=False, highlight=False)
