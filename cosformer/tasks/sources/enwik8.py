"""enwik8: the first 10^8 bytes of an English Wikipedia dump, split 90/5/5 million as is customary."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData, SourceMissing
from cosformer.tasks.pieces import Piece
from cosformer.tasks.sources.files import first_of
from cosformer.tasks.sources.source import TEST, TRAIN, VALID, TextSource, stamp_files
from cosformer.tasks.sources.text_files import read_text

BYTES = 100_000_000
RANGES = {TRAIN: (0, 90_000_000), VALID: (90_000_000, 95_000_000), TEST: (95_000_000, BYTES)}


class Enwik8(TextSource):
    """One running text: no document marks."""

    name = "enwik8"
    document_marks = False

    def __init__(self, path: str | Path | None) -> None:
        place = None if path is None else Path(path).expanduser()
        found = first_of(place, ["enwik8", "enwik8.txt"]) if place is not None and place.is_dir() else place
        if found is None or not found.is_file():
            looked = "no path was given" if path is None else f"looked for the file enwik8 (or .gz, .zip) at {path}"
            raise SourceMissing(
                f"enwik8: {looked}. Get it from https://mattmahoney.net/dc/enwik8.zip and name the file or its folder "
                "with --data"
            )
        self.file = found

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        return [split, stamp_files([self.file])]

    def expected_bytes(self, split: str) -> int:
        return RANGES[split][1] - RANGES[split][0]

    def pieces(self, split: str) -> Iterator[Piece]:
        self.check_split(split)
        start, stop = RANGES[split]
        given = 0
        for piece in read_text(self.file, start=start, stop=stop):
            given += len(piece.data)
            yield piece
        if given != stop - start:
            raise BadData(
                f"{self.file}: {start + given} bytes where enwik8 has {BYTES:,}: it is another file or cut short; get "
                "it from https://mattmahoney.net/dc/enwik8.zip"
            )
