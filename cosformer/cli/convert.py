"""`cosformer convert`: a softmax checkpoint becomes a cosFormer model, ready for fine-tuning."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cosformer.cli.models import refusals


def convert(
    source: Annotated[
        Path,
        typer.Argument(help="Folder of a checkpoint: BERT, RoBERTa (XLM-R, CamemBERT), GPT-2, Llama, Mistral, Qwen2."),
    ],
    target: Annotated[Path, typer.Argument(help="Folder to make: model, tokenizer, conversion.json.")],
    attention: Annotated[
        str, typer.Option(help="cosformer, softmax (kept: the same outputs), or one for each layer, with commas.")
    ] = "cosformer",
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence of the new model (the source's own).")
    ] = None,
    feature_map: Annotated[str, typer.Option(help="φ of cosFormer: relu, identity, leaky_relu, elu1, silu.")] = "relu",
    normalizer: Annotated[str, typer.Option(help="sum: weights are divided by their sum; norm: an RMSNorm.")] = "sum",
    seed: Annotated[int, typer.Option(help="For tensors that have no source.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of a table.")] = False,
) -> None:
    """Copy every weight of a softmax checkpoint that has a place in a cosFormer model, and tell of the rest.

    With cosFormer attention the copied model needs fine-tuning: it is attention of another kind, not a faster softmax.
    TARGET appears whole or not at all; nothing is overwritten.
    """
    console = Console(stderr=True)
    names: Any = attention.split(",") if "," in attention else attention
    with refusals(), console.status(f"converting {source}"):
        from cosformer.models import conversion

        report = conversion.convert(
            source, target, attention=names, horizon=horizon, seed=seed, feature_map=feature_map, normalizer=normalizer
        )
    if as_json:
        typer.echo((target / conversion.REPORT).read_text(encoding="utf-8"), nl=False)
        return
    out = Console()
    out = out if out.is_terminal else Console(width=200)  # into a file there is room
    out.print(table(report, conversion.grouped))
    kinds = sorted(set(report.attention))
    mixed = ", ".join(f"{report.attention.count(kind)} {kind}" for kind in kinds)
    out.print(f"{report.target_class}, horizon {report.horizon:,}, blocks: {mixed}; tokenizer: {report.tokenizer}")
    for note in report.notes:
        out.print(f"note: {note}", markup=False)
    console.print(f"wrote {target}")


def table(report: Any, grouped: Any) -> Table:
    shown = Table(title=f"{report.source_class} → {report.target_class}")
    for heading in ("", "cosFormer", "source", "tensors", "numbers", ""):
        shown.add_column(heading, justify="right" if heading in ("tensors", "numbers") else "left", overflow="fold")
    for entry, count, size in grouped(report.copied, "target", "source", "note"):
        shown.add_row("copied", entry["target"], entry["source"], str(count), f"{size:,}", escape(entry["note"]))
    shown.add_section()
    for entry, count, size in grouped(report.not_copied, "source", "reason"):
        numbers = f"{size:,}" if size else "–"
        shown.add_row("not copied", "", entry["source"], str(count), numbers, escape(entry["reason"]))
    shown.add_section()
    for entry, count, size in grouped(report.new, "target", "how", "reason"):
        words = f"{entry['how']}: {entry['reason']}"
        shown.add_row("new", entry["target"], "", str(count), f"{size:,}", escape(words))
    return shown
