"""`cosformer bench generate`: whole models, a token at a time, cosFormer against softmax of the same size."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cosformer.bench import environment
from cosformer.bench.report import write_json
from cosformer.cli.models import refusals
from cosformer.cli.options import chosen_device, chosen_dtype, dtype_name, numbers, stages


def generate(
    device: Annotated[str, typer.Option(help="cpu, cuda, or a device of `cosformer env`.")] = "cpu",
    contexts: Annotated[str | None, typer.Option(help="Tokens before the measured ones (1000,10000,100000).")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences written at once.")] = 1,
    layers: Annotated[int | None, typer.Option(min=1, help="(4; CUDA: 12)")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="(256; CUDA: 768)")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="(4; CUDA: 12)")] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="(8192; CUDA: 50257)")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or fp64 (fp32; CUDA: bf16).")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Decoding steps in a sample (16; CUDA: 8).")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Samples (15; CUDA: 9).")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU (as torch chooses).")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result file here; - prints it.")] = None,
) -> None:
    """Time per token and bytes of cache by length of context: a cosFormer model and a softmax model of one config.

    The context is set by filling states and caches with random numbers, not by reading so many tokens: the time of a
    step does not depend on their values. A step is all of it, from the embedding to the choice of the next token:
    launched from Python with a cache that grows (eager) or lies at fixed addresses (static), on CUDA also captured in a
    CUDA graph. Logits of single steps are first compared with those of the whole sequence.
    """
    console = Console(stderr=True)
    if threads is not None:
        torch.set_num_threads(threads)
    where = chosen_device(device)
    chosen = {"layers": layers, "width": width, "heads": heads, "vocab": vocab, "steps": steps, "repeats": repeats}
    with refusals():
        from cosformer.bench import generate as generating

        base = generating.CUDA if where.startswith("cuda") else generating.GenerateBench()
        bench = replace(
            base, device=where, batch=batch, **{name: value for name, value in chosen.items() if value is not None}
        )
        if contexts is not None:
            bench = replace(bench, contexts=numbers(contexts, "--contexts"))
        if dtype is not None:
            bench = replace(bench, dtype=chosen_dtype(dtype))
        with stages(console, "generate", generating.stages(bench)) as said:
            measured = generating.measure(bench, said=said)
    result = {
        "benchmark": "generate",
        **environment.provenance(where),
        "settings": {
            "contexts": list(bench.contexts), "batch": bench.batch, "layers": bench.layers, "width": bench.width,
            "heads": bench.heads, "vocab": bench.vocab, "dtype": dtype_name(bench.dtype), "steps": bench.steps,
            "repeats": bench.repeats, "threads": torch.get_num_threads(),
            "context": "filled with random numbers, not read",
        },
        "ways": {way: generating.WAYS[way] for way in bench.ways},
        **measured,
        "conclusions": generating.conclusions(measured),
    }  # fmt: skip
    if json_path is not None and str(json_path) == "-":
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
        return
    out = Console()
    out = out if out.is_terminal else Console(width=140)  # into a file there is room
    out.print(table(result))
    out.print(words(result), markup=False)
    if json_path is not None:
        write_json(json_path, result)
        console.print(f"wrote {json_path}")


def table(result: dict[str, Any]) -> Table:
    s = result["settings"]
    size = f"{s['layers']} layers × {s['width']}, {s['heads']} heads, batch {s['batch']}, {s['dtype']}"
    shown = Table(title=f"one token, ms (median, middle half), {size}, {result['device']}")
    for heading in ("model", "way", "context", "ms per token", "tokens/s", "cache bytes"):
        shown.add_column(heading, justify="left" if heading in ("model", "way") else "right")
    for attention, ways in result["models"].items():
        shown.add_section()
        for way in result["ways"]:
            for context, cell in ways[way].items():
                if "reason" in cell:
                    shown.add_row(attention, way, f"{int(context):,}", escape(cell["reason"]), "–", "–")
                    continue
                time = f"{cell['ms_per_token']:.3f} ({cell['low']:.3f}–{cell['high']:.3f})"
                rest = (f"{cell['tokens_per_s']:,.0f}", f"{cell['cache_bytes']:,}")
                shown.add_row(attention, way, f"{int(context):,}", time, *rest)
    return shown


def words(result: dict[str, Any]) -> str:
    lines = []
    for attention, ways in result["conclusions"].items():
        for way, facts in ways.items():
            if way == "captured_over_eager":
                gains = ", ".join(f"{gain:.1f}× at {int(context):,}" for context, gain in facts.items())
                lines.append(f"{attention}: captured over eager, tokens/s: {gains}")
                continue
            kept = "bytes constant" if facts["bytes_constant"] else "bytes grow or are reserved with the context"
            lines.append(
                f"{attention}, {way}: longest context over shortest {facts['time_longest_over_shortest']:.2f}×, {kept}"
            )
    return "\n".join(lines)
