"""What sources give: pieces of documents for language models, examples for everything else."""

from typing import NamedTuple


class Place(NamedTuple):
    """Where text came from, for error messages."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class Piece(NamedTuple):
    """A stretch of a document, as UTF-8 bytes. Long documents come in several, so that none is ever whole in memory."""

    data: bytes
    place: Place
    first: bool = True
    """Begins its document."""
    last: bool = True
    """Ends it."""


class Example(NamedTuple):
    """One or two texts and what is to be said of them; a pair without a label is a source and its target."""

    texts: tuple[str, ...]
    label: int | None
    place: Place
