"""Retrieval of the arena: does one paper cite the other? Pairs of the ACL Anthology Network, byte by byte."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer.tasks.encoders import ByteEncoder
from cosformer.tasks.errors import BadData, SourceMissing
from cosformer.tasks.lra.source import LraSource
from cosformer.tasks.pieces import Example
from cosformer.tasks.sources.files import first_of
from cosformer.tasks.sources.source import TEST, TRAIN, VALID, stamp_files
from cosformer.tasks.sources.tables import lines_of

FILES = {TRAIN: "new_aan_pairs.train.tsv", VALID: "new_aan_pairs.eval.tsv", TEST: "new_aan_pairs.test.tsv"}
FOLDERS = ("", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
COLUMNS = ("label", "id1", "id2", "text1", "text2")
LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
WHERE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"


class LraRetrieval(LraSource):
    """new_aan_pairs.{train,eval,test}.tsv of the arena's release: label, two ids, two texts, no names above them.

    Two texts per example; a model reads each by itself (LabelledTexts with apart=True). Cells are taken as they are, as
    in the arena's own reader: where texts were written as Python writes bytes (b'…'), these marks are text too.
    """

    name = "lra-retrieval"
    classes = ("unrelated", "cited")
    texts = 2
    encoder = ByteEncoder()
    length = 4_000

    def __init__(self, path: str | Path | None = None) -> None:
        place = None if path is None else Path(path).expanduser()
        self.files: dict[str, Path] = {}
        for folder in FOLDERS if place is not None else ():
            assert place is not None
            found = {split: first_of(place / folder, [name]) for split, name in FILES.items()}
            if not self.files and all(found.values()):
                self.files = {split: file for split, file in found.items() if file is not None}
        if not self.files:
            wanted = ", ".join(FILES.values())
            looked = "no path was given" if path is None else f"looked for {wanted} (or packed) in {path}"
            raise SourceMissing(
                f"{self.name}: {looked}. Get the arena's release from {WHERE}, unpack it, and name the folder "
                "with --data"
            )

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        return stamp_files([self.files[split]])

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        some = False
        for place, line in lines_of(self.files[split]):
            if not line:
                continue
            cells = line.split("\t")
            if len(cells) != len(COLUMNS):
                raise BadData(f"{place}: {len(cells)} cells where there should be {len(COLUMNS)}: {', '.join(COLUMNS)}")
            label = LABELS.get(cells[0])
            if label is None:
                raise BadData(f"{place}: label {cells[0]!r}: 0 (unrelated) or 1 (cited) was expected")
            some = True
            yield Example((cells[3], cells[4]), label, place)
        if not some:
            raise BadData(f"{self.files[split]}: the file is empty: there are no pairs in it")
