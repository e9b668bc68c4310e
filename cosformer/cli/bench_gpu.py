"""`cosformer bench attention` on CUDA: the table against the floor, the result file, the plot."""

import json
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cosformer.bench import environment, gpu
from cosformer.bench.attention import AttentionBench, backend_in_words
from cosformer.bench.clock import clock_for
from cosformer.bench.report import plot_floor, write_json
from cosformer.bench.systems import systems
from cosformer.cli.options import dtype_name, stages

MODES = {gpu.FORWARD: "forward", gpu.TRAINING: "forward + backward"}


def attention_on_gpu(
    bench: AttentionBench,
    errors: dict[str, float],
    groups: tuple[str, ...],
    json_path: Path | None,
    plot: Path | None,
    console: Console,
) -> None:
    each, left_out = systems(groups, backend=bench.backend)
    for name, reason in left_out.items():
        console.print(f"left out: {name}: {reason}", markup=False)
    with stages(console, "attention", gpu.stages(bench)) as said:
        rows, rates = gpu.measure(bench, each, clock_for(torch.device(bench.device)), said=said)
    result = {
        "benchmark": "attention on cuda",
        **environment.provenance(bench.device),
        "backend": backend_in_words(bench),
        "configurations": environment.configurations(),
        "settings": {
            "tokens": bench.tokens, "heads": bench.heads, "width": bench.width, "dtype": dtype_name(bench.dtype),
            "repeats": bench.repeats,
        },
        "worst_error_against_float64": errors,
        "rates": rates.to_json(),
        "left_out": left_out,
        "rows": [row.to_json(rates) for row in rows],
    }  # fmt: skip
    if json_path is not None and str(json_path) == "-":
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        out = Console()
        out = out if out.is_terminal else Console(width=180)  # into a file there is room
        for mode in MODES:
            out.print(table(result, mode))
        out.print(words(result))
    if json_path is not None and str(json_path) != "-":
        write_json(json_path, result)
        console.print(f"wrote {json_path}")
    if plot is not None:
        plot_floor(plot, result)
        console.print(f"wrote {plot}")


def table(result: dict, mode: str) -> Table:
    """One mode, a line for each length and system."""
    settings = result["settings"]
    title = f"{MODES[mode]}, GPU ms (median), H={settings['heads']}, K=V={settings['width']}, {settings['dtype']}"
    shown = Table(title=f"{title}, {result['device']}")
    shown.add_column("T", justify="right", no_wrap=True)
    shown.add_column("system", no_wrap=True)
    for heading in ("ms", "p20–p80", "runs", "× floor", "of matmul", "peak MiB", "extra", "call µs"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("")
    for row in result["rows"]:
        shown.add_section()
        shown.add_row(f"{row['length']:,}", "floor", f"{row['floor_ms'][mode]:.3f}", *[""] * 8)
        for name, cell in row[mode].items():
            shown.add_row("", name, *cell_words(cell))
    return shown


def cell_words(cell: dict) -> list[str]:
    if "reason" in cell:
        return ["–"] * 8 + [escape(cell["reason"])]
    memory = ["–", "–"]
    if cell["peak_mib"] is not None:
        memory = [f"{cell['peak_mib']:,.0f}", f"{cell['extra_percent']:.0f}%"]
    return [
        f"{cell['ms']:.3f}", f"{cell['p20']:.3f}–{cell['p80']:.3f}", " ".join(f"{x:.3f}" for x in cell["ms_by_run"]),
        f"{cell['times_floor']:.2f}", f"{cell['share_of_matmul']:.0%}", *memory, f"{cell['call_us']:,.0f}",
        "" if cell["cpu_ahead"] else "GPU waited for the CPU",
    ]  # fmt: skip


def words(result: dict) -> str:
    rates = result["rates"]
    return (
        f"measured in this run: copy {rates['copy_gb_per_s']:,.0f} GB/s, matmul "
        f"{rates['matmul_gflop_per_s'] / 1e3:,.0f} TFLOP/s; floor: bytes of q, k, v, o (and their gradients) over the "
        "copy rate; peak: beyond the inputs; extra: beyond the output (and gradients); call: CPU time to launch"
    )
