"""IMDB: film reviews, positive or negative. Validation is held out from train, never taken from test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData, SourceMissing, not_utf8
from cosformer.tasks.pieces import Example, Place
from cosformer.tasks.sources.files import first_of
from cosformer.tasks.sources.labels import label_number
from cosformer.tasks.sources.source import TEST, TRAIN, ExampleSource, split_by_hash, stamp_files
from cosformer.tasks.sources.tables import read_rows, text_column

HELD_OUT = 0.1


class Imdb(ExampleSource):
    """A folder with {train,test}.jsonl (text, label), or as published: {train,test}/{neg,pos}/*.txt."""

    name = "imdb"
    classes = ("negative", "positive")

    def __init__(self, path: str | Path | None) -> None:
        self.folder = None if path is None else Path(path).expanduser()
        if self.folder is not None and (self.folder / "aclImdb").is_dir():
            self.folder = self.folder / "aclImdb"
        for part in (TRAIN, TEST):
            if self.folder is None or (self._table(part) is None and not (self.folder / part / "pos").is_dir()):
                looked = "no path was given" if path is None else f"looked for {part}.jsonl and {part}/pos in {path}"
                raise SourceMissing(
                    f"imdb: {looked}. Get it from https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz, "
                    "unpack it, and name the folder with --data"
                )

    def _table(self, part: str) -> Path | None:
        return first_of(self.folder, [f"{part}.jsonl"]) if self.folder is not None else None

    def _reviews(self, part: str) -> list[tuple[int, Path]]:
        assert self.folder is not None
        return [
            (k, p) for k, name in enumerate(("neg", "pos")) for p in sorted((self.folder / part / name).glob("*.txt"))
        ]

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        part = TEST if split == TEST else TRAIN
        table = self._table(part)
        return [split, HELD_OUT, stamp_files([table] if table else [p for _, p in self._reviews(part)])]

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        part = TEST if split == TEST else TRAIN
        some = False
        for number, example in enumerate(self._all(part)):
            held = split_by_hash(f"imdb:{number}", (HELD_OUT, 0.0))
            if split in (TEST, held):
                some = True
                yield example
        if not some:
            raise BadData(f"{self.folder}: no reviews for split {split!r}: the files are empty")

    def _all(self, part: str) -> Iterator[Example]:
        table = self._table(part)
        if table is not None:
            for place, row in read_rows(table, "jsonl"):
                yield Example(
                    (text_column(place, row, "text"),), label_number(place, row, "label", self.classes), place
                )
            return
        for label, path in self._reviews(part):
            place = Place(str(path), 1)
            try:
                yield Example((path.read_text(encoding="utf-8"),), label, place)
            except UnicodeDecodeError as error:
                raise not_utf8(place, error) from error
