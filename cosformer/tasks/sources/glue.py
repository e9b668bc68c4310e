"""SST-2, QQP and MNLI in the layout of GLUE: a folder of tsv files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cosformer.tasks.errors import BadData, SourceMissing
from cosformer.tasks.pieces import Example, Place
from cosformer.tasks.sources.files import first_of
from cosformer.tasks.sources.source import TEST, TRAIN, VALID, ExampleSource, stamp_files
from cosformer.tasks.sources.tables import lines_of


class Layout(NamedTuple):
    classes: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    """For each text the names its column may have."""
    label: str
    files: dict[str, tuple[str, ...]]
    """For each split the names its file may have; the first split must be there, others may be absent."""
    broken: tuple[str, ...] = ()
    """Rows that are known to be unusable: QQP has a few with too few cells, MNLI some without a consensus."""


LAYOUTS = {
    "sst2": Layout(
        ("negative", "positive"), (("sentence", "content"),), "label",
        {TRAIN: ("train.tsv",), VALID: ("dev.tsv", "valid.tsv"), TEST: ("test.tsv",)},
    ),
    "qqp": Layout(
        ("different", "duplicate"), (("question1",), ("question2",)), "is_duplicate",
        {TRAIN: ("train.tsv",), VALID: ("dev.tsv", "valid.tsv")}, broken=("cells",),
    ),
    "mnli": Layout(
        ("entailment", "neutral", "contradiction"), (("sentence1",), ("sentence2",)), "gold_label",
        {TRAIN: ("train.tsv",), "valid_matched": ("dev_matched.tsv",), "valid_mismatched": ("dev_mismatched.tsv",)},
        broken=("-",),
    ),
}  # fmt: skip
WHERE = {
    "sst2": "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
    "qqp": "https://dl.fbaipublicfiles.com/glue/data/QQP-clean.zip",
    "mnli": "https://dl.fbaipublicfiles.com/glue/data/MNLI.zip",
}


class Glue(ExampleSource):
    """task: sst2, qqp or mnli. Splits whose files are absent are not offered."""

    def __init__(self, path: str | Path | None, *, task: str) -> None:
        self.name, self.layout = task, LAYOUTS[task]
        self.classes, self.texts = self.layout.classes, len(self.layout.columns)
        folder = None if path is None else Path(path).expanduser()
        found = {s: None if folder is None else first_of(folder, names) for s, names in self.layout.files.items()}
        self.files = {split: file for split, file in found.items() if file is not None}
        self.splits = tuple(self.files)
        if TRAIN not in self.files or len(self.files) < 2:
            wanted = ", ".join(names[0] for names in self.layout.files.values())
            looked = "no path was given" if path is None else f"looked for {wanted} (or packed) in {path}"
            raise SourceMissing(
                f"{task}: {looked}. Get it from {WHERE[task]}, unpack it, and name the folder with --data"
            )

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        return stamp_files([self.files[split]])

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        lines = lines_of(self.files[split])
        first = next(lines, None)
        if first is None:
            raise BadData(f"{self.files[split]}: the file is empty: its first line should name the columns")
        names = first[1].split("\t")
        columns = [_column(first[0], names, wanted) for wanted in self.layout.columns]
        label = _column(first[0], names, (self.layout.label,))
        some = False
        for place, line in lines:
            cells = line.split("\t")
            if len(cells) != len(names):
                if "cells" in self.layout.broken:
                    continue
                raise BadData(f"{place}: {len(cells)} cells, but the first line names {len(names)} columns")
            if cells[label] in self.layout.broken:
                continue
            some = True
            yield Example(tuple(cells[c] for c in columns), self._label(place, cells[label]), place)
        if not some:
            raise BadData(f"{self.files[split]}: no rows that can be used")

    def _label(self, place: Place, cell: str) -> int:
        if cell in self.classes:
            return self.classes.index(cell)
        if cell.isdecimal() and int(cell) < len(self.classes):
            return int(cell)
        raise BadData(f"{place}: label {cell!r} is none of {', '.join(self.classes)} nor 0 to {len(self.classes) - 1}")


def _column(place: Place, names: list[str], wanted: tuple[str, ...]) -> int:
    for name in wanted:
        if name in names:
            return names.index(name)
    hint = (
        "; GLUE's test files have no labels: use the validation split" if wanted[0].endswith(("label", "ate")) else ""
    )
    raise BadData(f"{place}: there is no column {' or '.join(wanted)}; there are {', '.join(names)}{hint}")
