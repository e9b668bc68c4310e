"""Examples of the user's own: tables with one or two columns of text and perhaps a label."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData
from cosformer.tasks.pieces import Example
from cosformer.tasks.sources.files import Found, find_files
from cosformer.tasks.sources.source import TEST, TRAIN, VALID, ExampleSource, split_by_hash, stamp_files
from cosformer.tasks.sources.tables import label_number, read_rows, text_column

MOST_CLASSES = 1000


class ExampleFiles(ExampleSource):
    """jsonl, csv, tsv or parquet. Splits that are not named are held out from `train` by the hash of the row's number.

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
        self.name, self.columns, self.label, self.held_out, self.texts = name, columns, label, held_out, len(columns)
        self.files: dict[str, list[Found]] = {TRAIN: find_files(train)}
        if valid is not None:
            self.files[VALID] = find_files(valid, option="--valid-data")
        if test is not None:
            self.files[TEST] = find_files(test, option="--test-data")
        shares = [0.0 if s in self.files else share for s, share in zip((VALID, TEST), held_out, strict=True)]
        self.shares = shares
        self.splits = (TRAIN, *(s for s, share in zip((VALID, TEST), shares, strict=True) if s in self.files or share))
        self.classes = () if label is None else classes or self._find_classes()

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        files = [found.path for found in self.files.get(split, self.files[TRAIN])]
        return [split, list(self.columns), self.label, list(self.classes), self.shares, stamp_files(files)]

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        shared = split not in self.files or (split == TRAIN and sum(self.shares) > 0)
        empty = True
        for file in self.files.get(split, self.files[TRAIN]):
            for number, (place, row) in enumerate(read_rows(file.path, file.kind)):
                if shared and split_by_hash(f"{file.path.name}:{number}", self.shares) != split:
                    continue
                texts = tuple(text_column(place, row, column) for column in self.columns)
                label = None if self.label is None else label_number(place, row, self.label, self.classes)
                empty = False
                yield Example(texts, label, place)
        if empty:
            raise BadData(f"{self.name}: no rows for split {split!r}: name files for it, or hold out more")

    def _find_classes(self) -> tuple[str, ...]:
        names: set[str] = set()
        for file in self.files[TRAIN]:
            for place, row in read_rows(file.path, file.kind):
                if self.label not in row:
                    raise BadData(
                        f"{place}: there is no column {self.label!r}; there are {', '.join(row)}: choose with --label"
                    )
                names.add(str(row[self.label]).strip())
                if len(names) > MOST_CLASSES:
                    raise BadData(
                        f"{place}: more than {MOST_CLASSES} different labels in column {self.label!r}: is it another?"
                    )
        if len(names) < 2:
            raise BadData(f"{self.name}: column {self.label!r} holds {sorted(names)}: two classes at least are needed")
        if all(name.isdecimal() for name in names):
            return tuple(str(i) for i in range(max(map(int, names)) + 1))
        return tuple(sorted(names))
