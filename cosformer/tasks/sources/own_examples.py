"""Examples of the user's own: tables with one or two columns of text and perhaps a label."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData
from cosformer.tasks.pieces import Example, Place
from cosformer.tasks.sources.files import Found, find_files
from cosformer.tasks.sources.held_out import Moved, flags_for, moved_units
from cosformer.tasks.sources.labels import checked_classes, find_classes, label_number
from cosformer.tasks.sources.source import TEST, TRAIN, VALID, ExampleSource, split_by_hash, stamp_found
from cosformer.tasks.sources.tables import Row, checked_columns, read_rows, text_column


class ExampleFiles(ExampleSource):
    """jsonl, csv, tsv or parquet. Splits that are not named are held out from `train` by the hash of the row's number.

    Where hashing leaves one of them empty, it gets the row of the smallest hash.

    columns: one of text, or two for pairs. label: None for sequence to sequence. classes: those in `train` if None.
    """

    def __init__(
        self, train: Sequence[str | Path], *, valid: Sequence[str | Path] | None = None,
        test: Sequence[str | Path] | None = None, columns: tuple[str, ...] = ("text",), label: str | None = "label",
        classes: tuple[str, ...] | None = None, held_out: tuple[float, float] = (0.05, 0.05), name: str = "examples",
    ) -> None:  # fmt: skip
        if len(columns) not in (1, 2) or (label is None and len(columns) != 2):
            raise ValueError(
                f"columns={columns}, label={label!r}: one or two columns of text with a label, or a source and a "
                "target without one"
            )
        checked_columns(columns, label)
        self.name, self.columns, self.label, self.held_out, self.texts = name, columns, label, held_out, len(columns)
        self.files: dict[str, list[Found]] = {TRAIN: find_files(train)}
        if valid is not None:
            self.files[VALID] = find_files(valid, option="--valid-data")
        if test is not None:
            self.files[TEST] = find_files(test, option="--test-data")
        shares = [0.0 if s in self.files else share for s, share in zip((VALID, TEST), held_out, strict=True)]
        self.shares = shares
        self.splits = (TRAIN, *(s for s, share in zip((VALID, TEST), shares, strict=True) if s in self.files or share))
        self.classes: tuple[str, ...] = ()
        if label is not None:
            found = self.files[TRAIN]
            rows = (placed for file in found for placed in read_rows(file.path, file.kind))
            self.classes = checked_classes(classes) if classes else find_classes(rows, label, self._where)

    @property
    def _where(self) -> str:
        found = self.files[TRAIN]
        return f"{found[0].path}{' and others' if len(found) > 1 else ''}"

    def _shared(self, split: str) -> bool:
        """Whether the split is a part of the training files."""
        return split not in self.files or (split == TRAIN and sum(self.shares) > 0)

    @cached_property
    def _moved(self) -> Moved:
        moved = moved_units((key for key, _, _ in self._rows(self.files[TRAIN])), self.shares)
        if moved is None:
            rows = sum(1 for _ in self._rows(self.files[TRAIN]))
            flags = flags_for(self.shares)
            if not rows:
                raise BadData(f"{self._where}: there are no rows: there is nothing to train on")
            raise BadData(
                f"{self._where}: too few rows ({rows}) to hold some out from: name files with {flags}, or give more"
            )
        return moved

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        files = stamp_found(self.files.get(split, self.files[TRAIN]))
        usual = [split, list(self.columns), self.label, list(self.classes), self.shares, files]
        return [*usual, dict(self._moved)] if self._shared(split) and self._moved else usual

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        moved = self._moved if self._shared(split) else None
        empty = True
        for key, place, row in self._rows(self.files.get(split, self.files[TRAIN])):
            if moved is not None and (moved.get(key) or split_by_hash(key, self.shares)) != split:
                continue
            texts = tuple(text_column(place, row, column) for column in self.columns)
            label = None if self.label is None else label_number(place, row, self.label, self.classes)
            empty = False
            yield Example(texts, label, place)
        if empty:
            named = self.files.get(split, self.files[TRAIN])
            raise BadData(f"{named[0].path}: no rows for split {split!r}: the file is empty; give another")

    @staticmethod
    def _rows(files: list[Found]) -> Iterator[tuple[str, Place, Row]]:
        """Each with what hashes call it."""
        for file in files:
            for number, (place, row) in enumerate(read_rows(file.path, file.kind)):
                yield f"{file.key}:{number}", place, row
