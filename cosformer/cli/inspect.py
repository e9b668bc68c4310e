"""`cosformer inspect`: what a saved model is, what it costs, what it attends to."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cosformer.bench.report import write_whole
from cosformer.cli.models import refusals


def inspect(
    model: Annotated[Path, typer.Argument(help="Folder with a model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    attention_map: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Draw each layer's and head's weights for this text.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to draw them (PNG; needs matplotlib).")] = None,
) -> None:
    """Parameters, bytes of state, operations per token, horizon, and the attention of each layer."""
    if (attention_map is None) != (out is None):
        raise typer.BadParameter("--attention-map TEXT and --out FILE belong together: what to draw, and where")
    with refusals():
        import torch

        from cosformer.models.inspection import attention_maps, describe
        from cosformer.models.writing import load_model, load_tokenizer, read_config, token_ids

        config = read_config(model)
        facts = describe(config)
        if attention_map is not None and out is not None:
            tokenizer = load_tokenizer(model, config)
            ids = token_ids(tokenizer, attention_map)
            if not ids:
                raise ValueError("the text of --attention-map is empty: there is nothing to attend to")
            maps = attention_maps(load_model(model), torch.tensor([ids]))
            labels = [tokenizer.decode([i]) for i in ids]
            write_whole(out, picture(maps, config.attentions, labels))
    if as_json:
        typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        console = Console()
        console = console if console.is_terminal else Console(width=120)
        console.print(summary(facts))
        console.print(layers(facts))
    if out is not None:
        Console(stderr=True).print(f"wrote {out}")


def summary(facts: dict[str, Any]) -> Table:
    shown = Table(show_header=False, box=None)
    parts = facts["parameters"]
    inside = ", ".join(f"{name} {count:,}" for name, count in parts.items() if name != "total" and count)
    flops = facts["flops_per_token"]
    attention = "unknown" if flops["attention"] is None else f"{flops['attention']:,.0f}"
    context = flops["attention_per_token_of_context"]
    rows = [
        ("class", facts["class"]),
        ("parameters", f"{parts['total']:,} ({inside})"),
        ("heads", f"{facts['heads']} of {facts['head_dim']}, {facts['key_value_heads']} for keys and values"),
        ("positions", facts["positions"]),
        ("horizon", f"{facts['horizon']:,} tokens" + ("" if facts["has_longest"] else " (of no block: no bound)")),
        ("state", f"{facts['state_bytes']:,} bytes per sequence, whatever its length"),
        ("FLOPs per token", f"{flops['weights']:,} (weights) + {attention} (attention)"),
    ]
    if facts["cache_bytes_per_token"]:
        rows.append(("cache that grows", f"{facts['cache_bytes_per_token']:,} bytes per token of context"))
    if context:
        rows.append(("FLOPs that grow", f"{context:,.0f} per token, for each token of context"))
    for name, words in rows:
        shown.add_row(name, words)
    return shown


def layers(facts: dict[str, Any]) -> Table:
    shown = Table()
    for heading in ("stack", "layer", "attention", "causal", "state bytes", "cache bytes per token"):
        shown.add_column(heading, justify="left" if heading in ("stack", "attention", "causal") else "right")
    for layer in facts["layers"]:
        name = layer["attention"] + (", cross too" if layer["cross_attention"] else "")
        kept = (f"{layer['state_bytes']:,}", f"{layer['cache_bytes_per_token']:,}")
        shown.add_row(layer["stack"], str(layer["layer"]), name, "yes" if layer["causal"] else "no", *kept)
    return shown


def picture(maps: list[Any], attentions: list[str], labels: list[str]) -> bytes:
    """A row for each layer, a column for each head; queries from top to bottom, keys from left to right."""
    try:
        import matplotlib
    except ImportError as error:
        raise RuntimeError("a picture needs matplotlib: pip install 'cosformer[plot]'") from error
    matplotlib.use("Agg")
    import io

    import matplotlib.pyplot as plt

    heads = maps[0].shape[0]
    side = 1.7 if len(labels) > 24 else 2.6
    size = (side * heads + 0.9, side * len(maps) + 0.7)
    figure, axes = plt.subplots(len(maps), heads, figsize=size, squeeze=False, layout="constrained")
    words = [repr(label)[1:-1].replace("$", r"\$") for label in labels]
    for i, (weights, row) in enumerate(zip(maps, axes, strict=True)):
        for head, axis in enumerate(row):
            axis.imshow(weights[head].numpy(), cmap="magma", interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            if i == 0:
                axis.set_title(f"head {head}", fontsize=8)
            if head == 0:
                axis.set_ylabel(f"layer {i}\n{attentions[i]}", fontsize=8)
                if len(labels) <= 24:
                    axis.set_yticks(range(len(words)), words, fontsize=5)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    plt.close(figure)
    return buffer.getvalue()
