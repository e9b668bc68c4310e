"""`cosformer compare`: all attentions side by side, measured here; quality from runs; one page of it."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table as Shown

from cosformer.bench.report import write_whole
from cosformer.cli.models import refusals
from cosformer.cli.options import chosen_device, chosen_dtype, names, numbers, stages

if TYPE_CHECKING:
    from cosformer.compare.quality import Quality
    from cosformer.compare.results import Result
    from cosformer.compare.settings import Sweep

OUT = Path("runs/compare")
PAGE = "compare.html"
QUICK_MINUTES = 3.5

Out = Annotated[Path, typer.Option(help="Folder of the measurements and the page.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or a device of `cosformer env`.")]
Given = Annotated[
    list[Path] | None,
    typer.Option(
        "--quality",
        help="Folder or table.json of a queue of trainings, result file of runs, or folder of runs; may be repeated "
        "(the results of a checkout).",
    ),
]

app = typer.Typer(invoke_without_command=True, help="All attentions side by side.")


@app.callback()
def compare(
    context: typer.Context,
    out: Out = OUT,
    device: Device = "auto",
    minutes: Annotated[float, typer.Option(min=0.1, help="Measure no longer than this.")] = QUICK_MINUTES,
    quality: Given = None,
) -> None:
    """Measure every attention from 512 to 8,192 tokens (CUDA: 131,072) in at most four minutes, and write the page.

    The parts, with all their options: `cosformer compare speed` and `cosformer compare report`.
    """
    if context.invoked_subcommand is not None:
        return
    with _stoppable(out), refusals():
        from cosformer.compare.settings import LENGTHS, QUICK, defaults

        where = _device(device)
        lengths = LENGTHS if where.startswith("cuda") else QUICK
        base = defaults(where)
        _measure(replace(base, lengths=lengths, visits=2, minutes=minutes), out)
        page = _write_page(out, _quality(quality), out / PAGE, None)
    typer.echo(f"wrote {page}")


@app.command()
def speed(
    out: Out = OUT,
    device: Device = "auto",
    attentions: Annotated[str | None, typer.Option(help="Names, separated by commas (all).")] = None,
    lengths: Annotated[str | None, typer.Option(help="Tokens, separated by commas (512,1024,…,131072).")] = None,
    mode: Annotated[str, typer.Option(help="causal, bidirectional or both.")] = "both",
    heads: Annotated[int | None, typer.Option(min=1, help="(2; CUDA: 16)")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="K and V of a head (64).")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Of a call: short sequences are batched (2048; CUDA: 131072).")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16 (fp32; CUDA: bf16).")] = None,
    visits: Annotated[int | None, typer.Option(min=1, help="Turns in which a cell is measured (3; CUDA: 2).")] = None,
    limit: Annotated[float | None, typer.Option(help="Seconds of the longest call waited for (5; CUDA: 1).")] = None,
    memory: Annotated[
        float | None, typer.Option(help="GiB a call may take beyond its inputs (four fifths of what is free).")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Measure no longer than this (until all is done).")] = None,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", help="Module that registers attentions of your own; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result file instead of a table.")] = False,
) -> None:
    """Time and memory of attentions over length, forward and training, into speed.json of the folder.

    Each attention runs in a process of its own: out of memory, a crash or a call beyond the limit is a cell of the
    table. The file is written after every visit; the same command goes on where it was ended. Lengths, attentions or
    visits may be added by a later call, if machine, versions, commit and settings are the same.
    """
    with _stoppable(out), refusals():
        from cosformer.compare.settings import MODES, defaults

        base = defaults(_device(device), tuple(imports or ()))
        if mode not in (*MODES, "both"):
            raise ValueError(f"--mode {mode}: use {', '.join(MODES)} or both")
        chosen: dict[str, Any] = {
            "heads": heads, "width": width, "tokens": tokens, "visits": visits, "limit_s": limit, "memory_gib": memory,
            "minutes": minutes, "modes": MODES if mode == "both" else (mode,),
            "attentions": None if attentions is None else tuple(names(attentions)),
            "lengths": None if lengths is None else numbers(lengths, "--lengths"),
            "dtype": None if dtype is None else chosen_dtype(dtype),
        }  # fmt: skip
        sweep = replace(base, **{name: value for name, value in chosen.items() if value is not None})
        result = _measure(sweep, out)
    if as_json:
        from cosformer.compare.results import NAME

        typer.echo(json.dumps(json.loads((out / NAME).read_text(encoding="utf-8")), indent=1, ensure_ascii=False))
    else:
        _show(result)


@app.command()
def report(
    measured: Annotated[Path, typer.Argument(help="Folder or speed.json of `cosformer compare speed`.")] = OUT,
    quality: Given = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the page (compare.html beside it).")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the same tables as Markdown here, too.")] = None,
) -> None:
    """Write one page with tables, plots and attention maps of a comparison; it needs no network."""
    with refusals():
        beside = measured if measured.is_dir() else measured.parent
        page = _write_page(measured, _quality(quality), out or beside / PAGE, markdown)
    typer.echo(f"wrote {page}")
    if markdown is not None:
        typer.echo(f"wrote {markdown}")


@contextlib.contextmanager
def _stoppable(out: Path) -> Iterator[None]:
    """Ctrl-C is an end like others: what was measured stays."""
    try:
        yield
    except KeyboardInterrupt:
        words = f"stopped; what was measured is in {out}, and the same command goes on"
        Console(stderr=True).print(words, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None


def _device(name: str) -> str:
    return chosen_device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def _measure(sweep: "Sweep", out: Path) -> "Result":
    from cosformer.compare.results import NAME
    from cosformer.compare.sweep import sweep_folder

    console = Console(stderr=True)
    with stages(console, "compare", len(sweep.lengths)) as said:
        result = sweep_folder(sweep, out, said=said)
    console.print(f"wrote {out / NAME}", markup=False, soft_wrap=True)
    return result


def _quality(given: list[Path] | None) -> "Quality":
    from cosformer.compare.quality import Quality, committed, read_quality

    if given:
        return read_quality(given)
    root = Path(__file__).resolve().parents[2]
    in_checkout = (root / "pyproject.toml").is_file() and (root / "results").is_dir()
    return committed(root / "results") if in_checkout else Quality()


def _write_page(measured: Path, quality: "Quality", out: Path, markdown: Path | None) -> Path:
    from cosformer.compare.markdown import comparison_markdown
    from cosformer.compare.page import comparison_page, read_comparison

    found = read_comparison(measured, quality)
    write_whole(out, comparison_page(found).encode())
    if markdown is not None:
        write_whole(markdown, comparison_markdown(found).encode())
    return out


def _show(result: "Result") -> None:
    """Where softmax is overtaken: the short form of all that was measured."""
    from cosformer.compare.tables import crossover_table

    table = crossover_table(result, "us_per_token")
    shown = Shown(title=table.caption)
    for i, heading in enumerate(table.columns):
        shown.add_column(heading, justify="left" if i == 0 else "right")
    for row in table.rows:
        shown.add_row(*(entry.text for entry in row))
    out = Console()
    (out if out.is_terminal else Console(width=160)).print(shown)
