"""`cosformer eval`: the model of a run on held-out data."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cosformer.cli.models import refusals
from cosformer.cli.options import chosen_device, progress


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    split: Annotated[str, typer.Option(help="train, valid, test, … (test where there is one).")] = "",
    data: Annotated[
        list[str] | None, typer.Option(help="Where the data lies now, if not where it lay in training.")
    ] = None,
    test_data: Annotated[list[str] | None, typer.Option(help="Your own files to test on, all of each.")] = None,
    context: Annotated[int, typer.Option(min=0, help="Tokens read at once (as in training).")] = 0,
    stride: Annotated[
        int, typer.Option(min=0, help="Of language models: how far the next window is (half the context).")
    ] = 0,
    batch: Annotated[int, typer.Option(min=0, help="Sequences at once (as in training).")] = 0,
    batches: Annotated[int, typer.Option(min=0, help="At most so many, spread over the split (all).")] = 0,
    beams: Annotated[int, typer.Option(min=1, help="Of translation.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    cache: Annotated[Path | None, typer.Option(help="Folder for prepared data (data-cache beside the run).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
) -> None:
    """Measure a trained model: bits per byte and perplexity, accuracy with its interval, or BLEU.

    The result is also written to eval-SPLIT.json in the run folder, with hashes, settings, machine and commit; with
    --test-data to eval-SPLIT-own.json, with --batches to eval-SPLIT-part.json.
    """
    where = device if device == "auto" else chosen_device(device)
    with refusals():
        from cosformer.cli.watching import Shown
        from cosformer.models.writing import hide_bars
        from cosformer.training import EvalSettings
        from cosformer.training import evaluate as measured
        from cosformer.training.evaluation import own_numbers

        hide_bars()
        settings = EvalSettings(
            split=split, path=tuple(data or ()), test_path=tuple(test_data or ()), context=context, stride=stride,
            batch=batch, batches=batches, beams=beams,
        )  # fmt: skip
        console = Console(stderr=True)
        with _bar(console, run.name) as done:
            result = measured(run, settings, device=where, cache=cache, done=done, preparing=Shown(console).preparing)
    if as_json:
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
        return
    shown = Table(show_header=False, title=f"{run}: {result['recipe']}, {result['split']} of {result['data']}")
    for name, value in own_numbers(result["metrics"]):
        shown.add_row(name, value)
    console = Console()
    console.print(shown)
    console.print(f"{result['how']}; {result['precision']}, {result['device']}", markup=False, highlight=False)
    words = f"wrote {result['file']}" if result["file"] else f"{run} cannot be written: the result is only here"
    console.print(words, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _bar(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """Drawn from the first batch on, not above a refusal; a second pass (translations) begins anew."""
    with contextlib.ExitStack() as shown:
        bar = progress(console)
        task = bar.add_task(name, total=None)

        def told(read: int, total: int) -> None:
            bar.update(task, completed=read, total=total)
            if not bar.live.is_started:
                shown.enter_context(bar)

        yield told
