"""What the tasks of the arena have in common: an encoder and a customary length; and what those share that are made."""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from cosformer.tasks.encoders import Encoder
from cosformer.tasks.lra.processes import made_in_order
from cosformer.tasks.pieces import Example, Place
from cosformer.tasks.sources.source import TEST, TRAIN, VALID, ExampleSource


class LraSource(ExampleSource):
    """A task of the arena."""

    encoder: Encoder
    """Gives the ids that the task is defined on; pass it to prepare(). Another encoder would read pictures as text."""
    tokenizer: Callable[[], Any] | None = None
    """Makes the `tokenizers.Tokenizer` that gives the same ids, to be saved with a model; None: the byte tokenizer."""
    length: int
    """Tokens a model is given of a text, as customary."""
    even: bool = False
    """Whether every text has exactly `length` tokens, so that no batch is padded."""


class GeneratedSource(LraSource):
    """Examples that are made, not read: the same for the same seed on every machine, whatever the number of processes.

    sizes: examples of train, valid and test. workers: processes; one per processor by default, 0 for none.
    """

    maker: Any
    """A dataclass with make(split, start, stop)."""
    version: ClassVar[int]
    """Raised when the same seed gives other examples."""
    block: ClassVar[int]
    """Examples that are made at a time."""
    text_bytes: ClassVar[int]
    """Bytes of text per example, near enough for a progress bar."""

    def __init__(self, path: str | Path | None, seed: int, sizes: tuple[int, int, int], workers: int | None) -> None:
        if path is not None:
            raise ValueError(f"{self.name} is generated and reads no files, got {path}: leave the path (--data) out")
        if not isinstance(sizes, tuple | list) or len(sizes) != 3 or not all(_counts(size, 1) for size in sizes):
            raise ValueError(f"sizes={sizes!r}: three counts, at least one example each for train, valid and test")
        if workers is not None and not _counts(workers, 0):
            raise ValueError(f"workers={workers!r}: 0 for none, or a number of processes")
        if not _counts(seed, 0):
            raise ValueError(f"seed={seed!r}: a whole number from 0 on")
        self.sizes: dict[str, int] = dict(zip((TRAIN, VALID, TEST), sizes, strict=True))
        self.seed, self.workers = seed, _processors() if workers is None else workers

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        return [split, self.version, asdict(self.maker), self.sizes[split]]

    def expected_bytes(self, split: str) -> int:
        self.check_split(split)
        return self.text_bytes * self.sizes[split]

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        where = f"{self.name}, {split}, generated with seed {self.seed}"
        made = made_in_order(self.maker, split, self.sizes[split], block=self.block, workers=self.workers)
        for number, (text, label) in enumerate(made, 1):
            yield Example((text,), label, Place(where, number))


def _counts(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
