"""What several verbs share: options read and refused alike, one progress bar."""

import contextlib
from collections.abc import Callable, Iterator

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cosformer.bench import environment
from cosformer.bench.systems import GROUPS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


def chosen_device(name: str) -> str:
    """As `cosformer env` names it; plain `cuda` is the first."""
    try:
        return environment.known_device(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error


def chosen_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise typer.BadParameter(f"{name!r} is unknown: use one of {', '.join(DTYPES)}", param_hint="--dtype")
    return DTYPES[name]


def chosen_systems(text: str | None) -> tuple[str, ...]:
    chosen = GROUPS if text is None else tuple(text.split(","))
    if unknown := sorted(set(chosen) - set(GROUPS)):
        raise typer.BadParameter(
            f"{', '.join(unknown)} unknown: use some of {','.join(GROUPS)}", param_hint="--systems"
        )
    return chosen


def dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, one in DTYPES.items() if one == dtype)


def numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(x) for x in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: give whole numbers such as 512,4096", param_hint=option) from error


def names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def pairs(texts: list[str], option: str, form: str) -> dict[str, str]:
    """NAME=PATH, each once."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not path or name in found:
            raise typer.BadParameter(f"{text!r}: write {form}, once for each", param_hint=option)
        found[name] = path
    return found


@contextlib.contextmanager
def stages(console: Console, name: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar that a call moves on with words; a line for each where there is no terminal to draw it on."""
    with progress(console) as bar:
        task = bar.add_task(name, total=total)

        def said(words: str) -> None:
            bar.update(task, advance=1, description=words)
            if not console.is_terminal:
                console.print(words)

        yield said


def progress(console: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=console)
