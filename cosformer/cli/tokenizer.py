"""`cosformer tokenizer`: tokenizers made from nothing but local text."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from cosformer.cli.models import refusals

app = typer.Typer(no_args_is_help=True, help="Tokenizers made from nothing but local text.")


@app.callback()
def tokenizer() -> None:
    """Tokenizers made from nothing but local text."""


@app.command()
def train(
    sources: Annotated[list[Path], typer.Argument(help="Text files (UTF-8), or folders that hold them.")],
    out: Annotated[Path, typer.Option(help="Folder to make; AutoTokenizer loads it.")],
    vocab_size: Annotated[int, typer.Option(help="Tokens, 3 specials and 256 bytes among them.")] = 8_192,
    min_frequency: Annotated[int, typer.Option(min=1, help="Join only pairs seen at least so often.")] = 2,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence of the model it is for (its horizon).")
    ] = None,
) -> None:
    """Learn a byte-pair encoding (BPE) from text. The folder appears whole or not at all."""
    console = Console(stderr=True)
    with refusals():
        from cosformer.models.folders import check_free, whole_folder
        from cosformer.models.tokenizers import text_files, train_tokenizer

        check_free(out)
        files = text_files(sources)
        total = sum(file.stat().st_size for file in files)
        columns = (BarColumn(), DownloadColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        options: dict[str, Any] = {} if max_length is None else {"model_max_length": max_length}
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(f"reading {len(files):,} files", total=total)

            def read(size: int) -> None:
                bar.update(task, advance=size)
                if bar.tasks[0].completed == total:
                    bar.update(task, description="joining pairs")

            made = train_tokenizer(files, vocab_size, min_frequency=min_frequency, read=read, **options)
            bar.update(task, description="done")
        with whole_folder(out) as folder:
            made.save_pretrained(folder)
    typer.echo(f"{len(made):,} tokens from {total:,} bytes in {len(files):,} files: {out}")


@app.command(name="bytes")
def bytes_(
    out: Annotated[Path, typer.Option(help="Folder to make; AutoTokenizer loads it.")],
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence of the model it is for (its horizon).")
    ] = None,
) -> None:
    """Write the byte tokenizer: 259 tokens, id = 3 + byte."""
    with refusals():
        from cosformer.models.folders import whole_folder
        from cosformer.models.tokenizers import byte_tokenizer

        with whole_folder(out) as folder:
            byte_tokenizer(**({} if max_length is None else {"model_max_length": max_length})).save_pretrained(folder)
    typer.echo(f"259 tokens: {out}")
