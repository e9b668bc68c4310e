"""`cosformer bench train`: whole training steps, cosFormer against softmax in the same model."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cosformer.bench import environment
from cosformer.bench.report import plot_training, write_json
from cosformer.cli.models import refusals
from cosformer.cli.options import chosen_device, chosen_dtype, dtype_name, numbers, stages


def train(
    device: Annotated[str, typer.Option(help="cpu, cuda, or a device of `cosformer env`.")] = "cpu",
    preset: Annotated[
        str | None,
        typer.Option(help="2m (3×256), 25m (8×512), both of bytes, or 350m (24×1024, 32768 tokens) (2m; CUDA: 25m)."),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Tokens of a sequence (512,2048,4096; CUDA: 2048,8192,32768; 350m: 8192)."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Of a step, all sequences (2m: 4096, 25m: 524288, 350m: 65536).")
    ] = None,
    attentions: Annotated[
        str | None, typer.Option(help="Some of cosformer,softmax,softmax_cudnn (the first two; CUDA: all).")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="In a sample (1; CUDA: 5).")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Samples of each, in turn (5; CUDA: 7).")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32 or bf16 (fp32; CUDA: bf16).")] = None,
    compiled: Annotated[
        str | None,
        typer.Option(
            "--compile",
            help="none, default, reduce-overhead or max-autotune-no-cudagraphs of torch.compile (none; CUDA: default).",
        ),
    ] = None,
    positions: Annotated[
        str | None, typer.Option(help="sinusoidal, rotary, learned or none, of all models (sinusoidal).")
    ] = None,
    profiled: Annotated[
        bool, typer.Option("--profile", help="Keep with each time which kernels it goes to (in the JSON).")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU (as torch chooses).")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result file here; - prints it.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw speed and memory here (PNG; needs matplotlib).")] = None,
) -> None:
    """Tokens per second, memory and share of the matmul peak of training steps: models that differ in attention alone.

    A step is forward, loss, backward, clipped gradients and fused AdamW on random tokens that lie on the device
    already. Loss and gradients are first compared with fp32 without a compiler. Then the systems take turns; out of
    memory is a cell. The peak is that of a square product measured in between; operations are counted by formula: 6 for
    each weight and token, and three times the forward of the attention.
    """
    console = Console(stderr=True)
    if threads is not None:
        torch.set_num_threads(threads)
    where = chosen_device(device)
    chosen = {"steps": steps, "repeats": repeats, "compiled": compiled, "positions": positions}
    with refusals():
        from cosformer.bench import train as training
        from cosformer.bench.train_settings import ATTENTIONS, defaults

        bench = defaults(where, preset)
        bench = replace(
            bench, **{name: value for name, value in chosen.items() if value is not None}, profiled=profiled
        )
        if tokens is not None:
            bench = replace(bench, size=replace(bench.size, tokens=tokens))
        if lengths is not None:
            bench = replace(bench, lengths=numbers(lengths, "--lengths"))
        if attentions is not None:
            bench = replace(bench, attentions=tuple(attentions.split(",")))
        if dtype is not None:
            bench = replace(bench, dtype=chosen_dtype(dtype))
        with stages(console, "train", training.stages(bench)) as said:
            measured = training.measure(bench, said=said)
    result = {
        "benchmark": "train",
        **environment.provenance(where),
        "settings": {
            "preset": bench.preset, **asdict(bench.size), "lengths": list(bench.lengths),
            "dtype": dtype_name(bench.dtype), "compile": bench.compiled, "positions": bench.positions,
            "residual": "as dtype", "steps": bench.steps,
            "repeats": bench.repeats, "threads": torch.get_num_threads(),
        },
        "attentions": {name: ATTENTIONS[name] for name in bench.attentions},
        **measured,
    }  # fmt: skip
    if json_path is not None and str(json_path) == "-":
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        out = Console()
        out = out if out.is_terminal else Console(width=140)  # into a file there is room
        out.print(table(result))
        out.print(words(result), markup=False)
    if json_path is not None and str(json_path) != "-":
        write_json(json_path, result)
        console.print(f"wrote {json_path}")
    if plot is not None:
        plot_training(plot, result)
        console.print(f"wrote {plot}")


def table(result: dict[str, Any]) -> Table:
    s = result["settings"]
    size = f"{s['layers']} blocks × {s['width']}, {s['heads']} heads, {s['dtype']}, compile: {s['compile']}"
    shown = Table(title=f"training steps (median, middle half), {size}, {result['device']}")
    for heading in ("tokens", "attention", "ms per step", "tokens/s", "TFLOP/s", "of matmul", "peak GiB"):
        shown.add_column(heading, justify="left" if heading == "attention" else "right")
    for row in result["rows"]:
        shown.add_section()
        for name, cell in row["cells"].items():
            length = f"{row['length']:,} × {row['batch']}"
            if "reason" in cell:
                shown.add_row(length, name, escape(cell["reason"]), "–", "–", "–", "–")
                continue
            shown.add_row(
                length, name, f"{cell['step_ms']:,.1f} ({cell['low']:,.1f}–{cell['high']:,.1f})",
                f"{cell['tokens_per_s']:,.0f}", f"{cell['tflop_per_s']:,.1f}", f"{cell['share_of_matmul']:.1%}",
                "–" if cell["peak_bytes"] is None else f"{cell['peak_bytes'] / 2**30:.1f}",
            )  # fmt: skip
    return shown


def words(result: dict[str, Any]) -> str:
    lines = [f"matmul peak: {result['matmul_tflop_per_s']:,.2f} TFLOP/s"]
    for length, ratios in result["conclusions"].items():
        told = [f"{ratios['over_softmax']:.2f}× softmax as torch chooses"] if "over_softmax" in ratios else []
        told.append(f"{ratios['over_fastest_softmax']:.2f}× the fastest softmax")
        lines.append(f"{int(length):,} tokens: cosformer trains at {', '.join(told)}")
    return "\n".join(lines)
