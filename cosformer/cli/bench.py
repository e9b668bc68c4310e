"""`cosformer bench`: measurements on this machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cosformer.bench import environment
from cosformer.bench.attention import (
    CAUSAL,
    CUDA,
    FULL,
    SOFTMAX,
    AttentionBench,
    Row,
    StepTimes,
    backend_in_words,
    measure,
    measure_step,
)
from cosformer.bench.gate import gate_attention
from cosformer.bench.memory import peak_memory
from cosformer.bench.precision import drift, worst_errors
from cosformer.bench.report import plot_attention, write_json
from cosformer.cli.bench_generate import generate
from cosformer.cli.bench_gpu import attention_on_gpu
from cosformer.cli.bench_train import train
from cosformer.cli.decode import decode
from cosformer.cli.options import chosen_device, chosen_dtype, chosen_systems, dtype_name, numbers, progress

app = typer.Typer(no_args_is_help=True, help="Measurements on this machine.")
app.command()(decode)
app.command()(generate)
app.command()(train)


@app.callback()
def bench() -> None:
    """Measurements on this machine."""


@app.command()
def attention(
    device: Annotated[str, typer.Option(help="cpu, cuda, or a device of `cosformer env`.")] = "cpu",
    lengths: Annotated[
        str | None, typer.Option(help="Tokens, separated by commas (512,1024,4096,16384,65536; CUDA: 1024,8192,65536).")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Batch sequences up to this many tokens; 0: one sequence (0; CUDA: 131072)."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or fp64 (fp32; CUDA: bf16).")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="(8; CUDA: 16)")] = None,
    width: Annotated[int, typer.Option(min=1, help="K and V.")] = 64,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="Measured rounds of each length (9; CUDA: at most 50 in each of two runs)."),
    ] = None,
    backend: Annotated[str, typer.Option(help="auto, cpu, triton or torch.")] = "auto",
    systems: Annotated[
        str | None, typer.Option(help="CUDA: which of ours,sdpa,fla,torch, separated by commas (all).")
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="CPU: also the peak memory of 1,048,576 tokens (10 GB).")
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result file here; - prints it.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw time over length here (PNG; needs matplotlib).")] = None,
) -> None:
    """Our attention against softmax (SDPA) in the same process: medians of interleaved repeats.

    On CUDA, GPU time against the memory floor: ours, SDPA (flash and cuDNN), flash-linear-attention where it is
    installed (the extra `bench`), our plain torch form. Result files name the commit; where there is no git, the
    environment variable COSFORMER_COMMIT says it.
    """
    console = Console(stderr=True)
    device = chosen_device(device)
    on_cuda = device.startswith("cuda")
    groups = chosen_systems(systems)
    base = CUDA if on_cuda else AttentionBench()
    settings = replace(base, device=device, width=width, backend=backend)
    try:
        settings = replace(
            settings,
            lengths=base.lengths if lengths is None else numbers(lengths, "--lengths"),
            tokens=base.tokens if tokens is None else tokens,
            heads=base.heads if heads is None else heads,
            dtype=base.dtype if dtype is None else chosen_dtype(dtype),
            repeats=base.repeats if repeats is None else repeats,
        )
        if on_cuda and memory:
            raise ValueError("--memory is for the CPU: on CUDA every cell has its peak memory")
        if systems is not None and not on_cuda:
            raise ValueError("--systems is for CUDA: on a CPU ours and softmax are measured")
        console.print(f"backend: {backend_in_words(settings)}")
        errors = gate_attention(
            device=device, dtype=settings.dtype, width=width, backend=backend,
            lengths=(333, 4_099) if on_cuda else (333,),
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
    if on_cuda:
        attention_on_gpu(settings, errors, groups, json_path, plot, console)
        return
    heads, dtype = settings.heads, dtype_name(settings.dtype)
    rows: list[Row] = []
    with progress(console) as bar:
        task = bar.add_task("attention", total=len(settings.lengths) + 1 + memory)
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
        "settings": {
            "tokens": settings.tokens,
            "heads": heads,
            "width": width,
            "dtype": dtype,
            "repeats": settings.repeats,
        },
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
