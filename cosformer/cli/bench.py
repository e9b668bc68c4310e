"""`cosformer bench`: measurements on this machine."""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from cosformer.bench import environment
from cosformer.bench.attention import (
    CAUSAL,
    FULL,
    SOFTMAX,
    AttentionBench,
    Row,
    StepTimes,
    backend_in_words,
    gate,
    measure,
    measure_step,
)
from cosformer.bench.memory import peak_memory
from cosformer.bench.precision import drift, worst_errors
from cosformer.bench.report import plot_attention, write_json

app = typer.Typer(no_args_is_help=True, help="Measurements on this machine.")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


@app.callback()
def bench() -> None:
    """Measurements on this machine."""


@app.command()
def attention(
    device: Annotated[str, typer.Option(help="cpu, or a device of `cosformer env`.")] = "cpu",
    lengths: Annotated[str, typer.Option(help="Tokens, separated by commas.")] = "512,1024,4096,16384,65536",
    tokens: Annotated[int, typer.Option(min=0, help="Batch sequences up to this many tokens; 0: one sequence.")] = 0,
    dtype: Annotated[str, typer.Option(help="fp32, bf16, fp16 or fp64.")] = "fp32",
    heads: Annotated[int, typer.Option(min=1)] = 8,
    width: Annotated[int, typer.Option(min=1, help="K and V.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Measured rounds of each length.")] = 9,
    backend: Annotated[str, typer.Option(help="auto, cpu, triton or torch.")] = "auto",
    memory: Annotated[bool, typer.Option("--memory", help="Also the peak memory of 1,048,576 tokens (10 GB).")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result file here; - prints it.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw time over length here (PNG; needs matplotlib).")] = None,
) -> None:
    """Our attention against softmax (SDPA) in the same process: medians of interleaved repeats."""
    console = Console(stderr=True)
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype!r} is unknown: use one of {', '.join(DTYPES)}", param_hint="--dtype")
    if device not in environment.devices():
        found = ", ".join(environment.devices())
        raise typer.BadParameter(f"{device!r} is not on this machine: use one of {found}", param_hint="--device")
    try:
        each = tuple(int(x) for x in lengths.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{lengths!r}: give whole numbers such as 512,4096", param_hint="--lengths") from error
    try:
        settings = AttentionBench(
            lengths=each,
            tokens=tokens,
            heads=heads,
            width=width,
            device=device,
            dtype=DTYPES[dtype],
            backend=backend,
            repeats=repeats,
        )
        console.print(f"backend: {backend_in_words(settings)}")
        errors = gate(settings)
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
    rows: list[Row] = []
    with progress(console) as bar:
        task = bar.add_task("attention", total=len(each) + 1 + memory)
        for row in measure(settings):
            rows.append(row)
            bar.update(task, advance=1, description=f"{row.length:,} tokens done")
        steps = measure_step(settings)
        bar.update(task, advance=1, description="decoding done")
        peak = peak_memory(heads=heads, width=width) if memory else None
        bar.update(task, advance=int(memory))
    result = {
        "benchmark": "attention",
        **environment.provenance(device),
        "backend": backend_in_words(settings),
        "settings": {"tokens": tokens, "heads": heads, "width": width, "dtype": dtype, "repeats": repeats},
        "worst_error_against_float64": errors,
        "rows": [row.to_json(heads, width) for row in rows],
        "step_us": {"position_10": steps.early, "position_1000000": steps.late, "bare_product": steps.product},
        "memory": peak,
    }
    if json_path is not None and str(json_path) == "-":
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        out = Console()
        out.print(table(rows, settings))
        out.print(words(rows, steps, peak))
    if json_path is not None and str(json_path) != "-":
        write_json(json_path, result)
        console.print(f"wrote {json_path}")
    if plot is not None:
        plot_attention(plot, [row.to_json(heads, width) for row in rows], f"{environment.devices()[device]}, {dtype}")
        console.print(f"wrote {plot}")


@app.command()
def precision(
    steps: Annotated[int, typer.Option(min=1, help="Decoding steps for the drift of the state.")] = 100_000,
    backend: Annotated[str, typer.Option(help="auto, cpu, triton or torch.")] = "auto",
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result file here; - prints it.")] = None,
) -> None:
    """Worst errors against the quadratic definition in float64, by mode and dtype; drift of a long decoding."""
    console = Console(stderr=True)
    settings = AttentionBench(backend=backend)
    try:
        console.print(f"backend: {backend_in_words(settings)}")
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
    with console.status("comparing with the definition"):
        errors = worst_errors(backend=backend)
    with console.status(f"decoding {steps:,} tokens"):
        drifted = drift(steps=steps, backend=backend)
    result = {
        "benchmark": "precision", **environment.provenance("cpu"), "backend": backend_in_words(settings),
        "worst_error_against_float64": errors, "drift": drifted,
    }  # fmt: skip
    if json_path is not None and str(json_path) == "-":
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
        return
    out = Console()
    out.print(error_table(errors))
    out.print(f"after {steps:,} single steps in fp32 the output is off by {drifted['output']:.1e}")
    if json_path is not None:
        write_json(json_path, result)
        console.print(f"wrote {json_path}")


def error_table(errors: dict[str, dict]) -> Table:
    result = Table(title="worst error against float64: output / gradient (relative)")
    for heading in ("mode", *next(iter(errors.values()))):
        result.add_column(heading)
    for mode, by_dtype in errors.items():
        result.add_row(mode, *(f"{e['output']:.1e} / {e['gradient']:.1e}" for e in by_dtype.values()))
    return result


def progress(console: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=console)


def table(rows: list[Row], settings: AttentionBench) -> Table:
    dtype = str(settings.dtype).removeprefix("torch.")
    result = Table(title=f"causal, ms (median), H={settings.heads}, K=V={settings.width}, {dtype}, {settings.device}")
    for heading in ("tokens", "softmax", "ours", "gain", "both ways", "of matmul", "softmax f+b", "ours f+b", "gain"):
        result.add_column(heading, justify="right")

    def ms(times: dict, name: str) -> str:
        return f"{times[name].ms:,.{1 if times[name].ms >= 100 else 2}f}" if name in times else "–"

    for row in rows:
        share = row.share(CAUSAL, settings.heads, settings.width)
        forward = [ms(row.forward, SOFTMAX), ms(row.forward, CAUSAL), times(row.speedup), ms(row.forward, FULL)]
        training = [ms(row.training, SOFTMAX), ms(row.training, CAUSAL), times(row.training_speedup)]
        result.add_row(f"{row.length:,}", *forward, f"{share:.0%}", *training)
    return result


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.1f}×"


def words(rows: list[Row], steps: StepTimes, peak: dict[str, float] | None) -> str:
    text = (
        f"decoding step: {steps.early:.1f} µs at position 10, {steps.late:.1f} µs at 1,000,000; "
        f"{steps.late / steps.product:.1f}× one bare matrix–vector product ({steps.product:.1f} µs)"
    )
    if len(rows) > 1:
        each = [row.forward[CAUSAL].ms / row.length for row in rows]
        text += f"\ntime per token at {rows[-1].length:,}: {each[-1] / each[-2]:.2f}× that at {rows[-2].length:,}"
    if peak is not None:
        text += f"\nmemory: {peak['length']:,} tokens peak at {peak['ratio']:.2f}× the bytes of q, k, v and o"
    return text
