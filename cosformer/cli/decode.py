"""`cosformer bench decode`: one decoding step, early and late, against softmax over a cache."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cosformer.bench import environment
from cosformer.bench.clock import clock_for
from cosformer.bench.decode import CUDA, DecodeBench, measure
from cosformer.bench.floor import copy_rate
from cosformer.bench.gate import gate_steps
from cosformer.bench.report import write_json
from cosformer.cli.options import chosen_device, chosen_dtype, dtype_name, numbers, stages
from cosformer.ops.backends import choose_backend


def decode(
    device: Annotated[str, typer.Option(help="cpu, cuda, or a device of `cosformer env`.")] = "cpu",
    sequences: Annotated[int, typer.Option(min=1, help="Decoded at once.")] = 16,
    heads: Annotated[int, typer.Option(min=1)] = 16,
    width: Annotated[int, typer.Option(min=1, help="K and V.")] = 64,
    contexts: Annotated[
        str | None, typer.Option(help="Tokens of the softmax caches (1024,8192; CUDA: 1024,8192,65536).")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or fp64 (fp32; CUDA: bf16).")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured rounds, at most, in each of two runs.")] = 30,
    backend: Annotated[str, typer.Option(help="auto, cpu, triton or torch.")] = "auto",
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result file here; - prints it.")] = None,
) -> None:
    """One decoding step at positions 10, 1,000 and 1,000,000; softmax (SDPA) over caches next to it.

    On CUDA: GPU time, called step by step and as a CUDA graph. States are taken in turn, as a model of many layers
    does, so that they come from memory; `hot` is one state over and over.
    """
    console = Console(stderr=True)
    device = chosen_device(device)
    base = CUDA if device.startswith("cuda") else DecodeBench()
    where = torch.device(device)
    try:
        bench = replace(
            base, sequences=sequences, heads=heads, width=width, device=device, backend=backend, repeats=repeats,
            contexts=base.contexts if contexts is None else numbers(contexts, "--contexts"),
            dtype=base.dtype if dtype is None else chosen_dtype(dtype),
        )  # fmt: skip
        chosen = str(choose_backend(backend, where, dtype=bench.dtype, widest=width))
        console.print(f"backend: {chosen}")
        errors = gate_steps(device=device, dtype=bench.dtype, width=width, backend=backend)
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
    clock = clock_for(where)
    with stages(console, "decode", len(bench.positions) + len(bench.contexts)) as said:
        # no floor on a CPU: a copy fetches what it overwrites, a step in place does not
        copied = copy_rate(clock, where) if where.type == "cuda" else None
        ours, softmax = measure(bench, clock, said=said)
    result = {
        "benchmark": "decode",
        **environment.provenance(device),
        "backend": chosen,
        "settings": {
            "sequences": sequences, "heads": heads, "width": width, "dtype": dtype_name(bench.dtype),
            "repeats": repeats,
        },
        "worst_error_against_float64": errors,
        "copy_gb_per_s": None if copied is None else copied / 1e9,
        "floor_us": None if copied is None else bench.floor_bytes / copied * 1e6,
        "state_mib": bench.state_bytes / 2**20,
        "step": ours,
        "softmax": softmax,
    }  # fmt: skip
    if json_path is not None and str(json_path) == "-":
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
        return
    out = Console()
    (out if out.is_terminal else Console(width=120)).print(table(result))
    if json_path is not None:
        write_json(json_path, result)
        console.print(f"wrote {json_path}")


def table(result: dict) -> Table:
    settings = result["settings"]
    shape = f"{settings['sequences']} sequences × {settings['heads']} heads × {settings['width']}, {settings['dtype']}"
    floor = "" if result["floor_us"] is None else f"; floor {result['floor_us']:.1f} µs"
    shown = Table(title=f"one decoding step, µs (median, p20–p80), {shape}{floor}")
    ways = list(dict.fromkeys(way for part in ("step", "softmax") for row in result[part].values() for way in row))
    for heading in ("", *ways, "call µs"):
        shown.add_column(heading.replace("_", ", "), justify="right" if heading else "left")

    def words(cell: dict | None) -> str:
        if cell is None or "reason" in cell:
            return "–" if cell is None else escape(cell["reason"])
        waited = "" if cell["cpu_ahead"] else " (waited for the CPU)"
        return f"{cell['us']:,.2f} ({cell['p20']:,.2f}–{cell['p80']:,.2f}){waited}"

    for part, label in (("step", "ours at position"), ("softmax", "softmax over")):
        for number, row in result[part].items():
            launch = row["eager"].get("call_us")
            cells = [words(row.get(way)) for way in ways]
            shown.add_row(f"{label} {int(number):,}", *cells, "–" if launch is None else f"{launch:,.1f}")
    return shown
