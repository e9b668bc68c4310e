"""How a queue of runs is shown, and its table: shared by the verbs that queue."""

import json
import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cosformer.cli.watching import harmless
from cosformer.sweeps import Job, QueueSettings, Running, markdown_table, run_queue
from cosformer.sweeps.table import TABLE, read_table, shown


class QueueShown:
    """A line for each job that ends; on a terminal, those under way below."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.done = console, total, 0
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
        self.done += 1
        words = outcome["why"]
        if outcome["state"] == "done":
            words = f"{outcome['split']} {outcome['metric'].replace('_', ' ')} {outcome['value']:.4g}"
            if outcome["steps_per_second"]:
                words += f"; {outcome['steps_per_second']:.1f} steps/s"
        self.console.print(
            f"{job.name}: {outcome['state']}: {words}", markup=False, highlight=False, soft_wrap=True
        )  # fmt: skip


def do_queue(folder: Path, jobs: list[Job], settings: QueueSettings, *, json_file: Path | None, quiet: bool) -> None:
    """Runs it, prints the table, and ends with 130 if interrupted, with 1 if a job failed."""
    console = Console(stderr=True, quiet=quiet)
    view = QueueShown(console, len(jobs))
    console.print(f"{len(jobs)} runs in {folder}", markup=False, highlight=False)
    if view.live is not None:
        view.live.start()
    try:
        whole = run_queue(folder, jobs, settings, looked=view.looked, ended=view.ended)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    finally:
        if view.live is not None:
            view.live.stop()
    found = read_table(folder)
    print_table(found)
    if json_file is not None:
        from cosformer.bench.report import write_json

        write_json(json_file, found)
    typer.echo(f"wrote {folder / TABLE}", err=True)
    if not whole:
        typer.echo("stopped; the same command goes on with what is left", err=True)
        raise typer.Exit(130)
    if any(cell["state"] == "failed" for cell in found["cells"]):
        typer.echo(f"some runs failed; what they said is in {folder / 'logs'}", err=True)
        raise typer.Exit(1)


def print_table(found: dict[str, Any], *, markdown: bool = False, as_json: bool = False) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    if markdown:
        typer.echo(markdown_table(found), nl=False)
        return
    beside = found["settings"]["parallel"] - 1
    title = found["name"] + (f" (steps/s with {beside} other runs beside)" if beside else "")
    table = Table(title=title)
    for heading in ("group", "variant", "result", "seeds", "steps/s", "memory, MiB"):
        table.add_column(heading, justify="left" if heading in ("group", "variant", "result") else "right")
    for row in found["table"]:
        rate, memory = row.get("steps_per_second"), row.get("memory_bytes")
        table.add_row(
            row["group"], row["variant"], Text(shown(row)), str(row["seeds"]), f"{rate:.1f}" if rate else "",
            f"{memory / 2**20:,.0f}" if memory else "",
        )  # fmt: skip
    out = Console()
    (out if out.is_terminal else Console(width=160)).print(table)
