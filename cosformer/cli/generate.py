"""`cosformer generate`: text from a saved model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cosformer.cli.models import refusals
from cosformer.cli.options import chosen_device, chosen_dtype


def generate(
    model: Annotated[Path, typer.Argument(help="Folder with a model and its tokenizer.")],
    prompt: Annotated[str, typer.Option(help="The text to go on from; - reads it from standard input.")],
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens to write, at most (100, or what the horizon leaves).")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text while it is written.")] = False,
    temperature: Annotated[
        float, typer.Option(help="0: always the likeliest token; 1: drawn by probability; above: more varied.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw only among so many of the likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw only among the likeliest that together reach this probability.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="For what is drawn.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, or a device of `cosformer env`.")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or fp64 (as it was saved).")] = None,
    graph: Annotated[bool, typer.Option("--graph", help="CUDA: the decoding step captured in a CUDA graph.")] = False,
) -> None:
    """Go on from a prompt; an encoder–decoder answers it. Only the new text is printed."""
    where = chosen_device(device)
    kind = None if dtype is None else chosen_dtype(dtype)
    text = sys.stdin.read() if prompt == "-" else prompt

    def say(piece: str) -> None:
        typer.echo(piece, nl=False)
        sys.stdout.flush()

    with refusals():
        from cosformer.models.decoding import Sampling
        from cosformer.models.writing import continue_text, hide_bars, load_model, load_tokenizer, read_config

        hide_bars()
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        tokenizer = load_tokenizer(model, read_config(model))
        written = continue_text(
            load_model(model, device=where, dtype=kind), tokenizer, text, max_new_tokens=max_new_tokens,
            sampling=sampling, seed=seed, graph=graph, said=say if stream else None,
        )  # fmt: skip
    typer.echo("" if stream else written)
