"""What the verbs about models share: transformers is imported when one is called, and faults become clear refusals."""

import contextlib
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What is wrong with an input ends the command with its words and exit status 2, not with a traceback."""
    try:
        yield
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
