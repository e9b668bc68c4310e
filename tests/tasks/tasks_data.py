"""Small sources for the tests of this folder."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cosformer.tasks import ByteEncoder, ExampleSource, Marks, ShardSet, TextSource, prepare
from cosformer.tasks.pieces import Example, Piece, Place

REAL = os.environ.get("COSFORMER_TEST_DATA")


def real(folder: str) -> Path:
    """A folder of real data; the test skips where there is none."""
    path = Path(REAL or "", folder)
    if not REAL or not path.exists():
        pytest.skip(f"no real data: COSFORMER_TEST_DATA names no folder with {folder}")
    return path


class Documents(TextSource):
    """Documents given as lists of pieces."""

    name = "documents"

    def __init__(self, documents: list[list[bytes]]) -> None:
        self.documents = documents

    def stamp(self, split: str) -> Any:
        return [[piece.hex() for piece in document] for document in self.documents]

    def pieces(self, split: str) -> Iterator[Piece]:
        for document in self.documents:
            for i, data in enumerate(document):
                yield Piece(data, Place("memory", 1), i == 0, i == len(document) - 1)


class Examples(ExampleSource):
    name = "examples"

    def __init__(
        self, rows: list[tuple[tuple[str, ...], int | None]], classes: tuple[str, ...] = ("no", "yes")
    ) -> None:
        self.rows, self.classes, self.texts = rows, classes, len(rows[0][0])

    def stamp(self, split: str) -> Any:
        return self.rows

    def examples(self, split: str) -> Iterator[Example]:
        for number, (texts, label) in enumerate(self.rows, 1):
            yield Example(texts, label, Place("memory", number))


def shards_of(folder: Path, documents: list[list[bytes]], *, shard_bytes: int = 7, **marks: int) -> ShardSet:
    return prepare(Documents(documents), "train", ByteEncoder(), folder, marks=Marks(**marks), shard_bytes=shard_bytes)
