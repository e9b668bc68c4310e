"""What a source is: named splits of documents, or of examples, read in the same order every time."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cosformer.tasks.pieces import Example, Piece
from cosformer.tasks.sources.files import Found

TRAIN, VALID, TEST = "train", "valid", "test"


class Source(ABC):
    """Named splits; `stamp` changes when the files behind one change."""

    name: str
    splits: tuple[str, ...] = (TRAIN, VALID, TEST)

    @abstractmethod
    def stamp(self, split: str) -> Any:
        """Cheap to get, of JSON: names, sizes and times of files. Equal stamps mean that nothing need be read again."""

    def expected_bytes(self, split: str) -> int | None:
        """Bytes of text in the split, near enough for a progress bar; None where only reading would tell."""
        return None

    def check_split(self, split: str) -> None:
        if split not in self.splits:
            raise ValueError(f"{self.name} has no split {split!r}: use one of {', '.join(self.splits)}")


class TextSource(Source):
    """Documents for language models."""

    document_marks: bool = True
    """Whether documents are apart, so that their ends should be marked; False: the split is one running text."""

    @abstractmethod
    def pieces(self, split: str) -> Iterator[Piece]: ...


class ExampleSource(Source):
    """Texts with labels, pairs of texts with labels, or pairs of a text and what to make of it."""

    texts: int = 1
    """Texts per example."""
    classes: tuple[str, ...] = ()
    """Names of the labels 0, 1, …; none for sequence to sequence."""

    @abstractmethod
    def examples(self, split: str) -> Iterator[Example]: ...


def stamp_files(files: Iterable[Path]) -> list[list[str | int]]:
    return [[path.name, (status := path.stat()).st_size, status.st_mtime_ns] for path in files]


def stamp_found(files: Iterable[Found]) -> list[list[str | int]]:
    """As stamp_files, by the names that hashes use: files that change places change splits."""
    return [[file.key, *stamp_files([file.path])[0][1:]] for file in files]


def stamp_hash(stamp: Any) -> str:
    return hashlib.sha256(json.dumps(stamp, sort_keys=True).encode()).hexdigest()


def hash_place(key: str) -> float:
    """A number in [0, 1) that is the key's alone."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:8], "big") / 2**64


def split_by_hash(key: str, shares: Sequence[float] = (0.05, 0.05)) -> str:
    """The split of something by its name alone: whatever else there is, it stays where it is. shares: valid, test."""
    place = hash_place(key)
    valid, test = shares
    if place < valid:
        return VALID
    return TEST if place < valid + test else TRAIN
