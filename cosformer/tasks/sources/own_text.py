"""Text of the user's own for language models, in any of the formats, split as named or by hash."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData
from cosformer.tasks.pieces import Piece, Place
from cosformer.tasks.sources.ends import Ends, cut_ends
from cosformer.tasks.sources.files import PACKED, Found, find_files
from cosformer.tasks.sources.held_out import Moved, flags_for, moved_units
from cosformer.tasks.sources.source import TEST, TRAIN, VALID, TextSource, split_by_hash, stamp_found
from cosformer.tasks.sources.tables import read_rows, text_column
from cosformer.tasks.sources.text_files import DOCUMENTS, PIECE, cut_after_line, has_text, read_text

Paths = Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How splits are taken from the training files: by hash but for what is moved, or from the ends of texts."""

    moved: Moved = field(default_factory=dict)
    ends: Ends | None = None


class TextFiles(TextSource):
    """Files, folders and patterns. Splits that are not named are held out from `train`.

    Held out are whole files where there are several, rows of tables, lines or paragraphs where these are documents
    (each by the hash of its name or number; where that leaves a split empty, what has the smallest hash), or the end of
    a single text, and of each of two where neither can be spared.
    """

    def __init__(
        self, train: Paths, *, valid: Paths | None = None, test: Paths | None = None, column: str = "text",
        document: str = "file", held_out: tuple[float, float] = (0.05, 0.05), name: str = "text",
    ) -> None:  # fmt: skip
        if document not in DOCUMENTS:
            raise ValueError(f"document={document!r} is unknown: use one of {', '.join(DOCUMENTS)}")
        if min(held_out) < 0 or sum(held_out) >= 1:
            raise ValueError(f"held_out={held_out}: shares of valid and test, each ≥ 0, together below 1")
        self.name, self.column, self.document, self.held_out = name, column, document, held_out
        self.files = {TRAIN: find_files(train)}
        if valid is not None:
            self.files[VALID] = find_files(valid, option="--valid-data")
        if test is not None:
            self.files[TEST] = find_files(test, option="--test-data")
        self.splits = tuple(s for s in (TRAIN, VALID, TEST) if s in self.files or self._share(s) > 0)
        self.document_marks = not self._single

    @property
    def _single(self) -> bool:
        """One running text."""
        found = self.files[TRAIN]
        return len(found) == 1 and found[0].kind == "text" and self.document == "file"

    def _share(self, split: str) -> float:
        """What is held out from train for this split."""
        if split == TRAIN or split in self.files:
            return 0.0
        return self.held_out[0 if split == VALID else 1]

    @property
    def _shares(self) -> tuple[float, float]:
        return self._share(VALID), self._share(TEST)

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        files = stamp_found(self.files.get(split, self.files[TRAIN]))
        usual = [split, self.column, self.document, list(self._shares), files]
        if not self._shared(split):
            return usual
        how = self._how
        lines = how.ends is not None and not how.ends.within_lines
        if not how.moved and (how.ends is None or (self._single and lines)):
            return usual
        return [*usual, dict(how.moved), None if how.ends is None else how.ends.within_lines]

    def _shared(self, split: str) -> bool:
        """Whether the split is a part of the training files."""
        return split not in self.files or (split == TRAIN and sum(self._shares) > 0)

    def _whole(self, file: Found) -> bool:
        """Whether a file is in one split."""
        return file.kind == "text" and self.document == "file"

    @cached_property
    def _how(self) -> HeldOut:
        """Decided before anything is read in earnest, the same in every process."""
        found = self.files[TRAIN]
        where = f"{found[0].path}{' and others' if len(found) > 1 else ''}"
        texts = [file for file in found if self._whole(file)]
        flags = flags_for(self._shares)
        if not self._single:
            moved = moved_units(self._units(), self._shares)
            if moved is not None:
                return HeldOut(moved)
            units = sum(1 for _ in self._units())
            if not units:
                raise BadData(
                    f"{where}: {'the file is' if len(found) == 1 else 'the files are'} empty: there is no text"
                )
            if not texts:
                what = {"line": "lines", "paragraph": "paragraphs"} if found[0].kind == "text" else {}
                raise BadData(
                    f"{where}: too few {what.get(self.document, 'rows')} ({units}) to hold some out from: name files "
                    f"with {flags}, or give more"
                )
        elif not has_text(found[0].path):
            raise BadData(f"{where}: the file is empty: there is no text in it; give another")
        ends = cut_ends([file.path for file in texts if has_text(file.path)], self._shares)
        if ends is None:
            raise BadData(f"{where}: too little text to hold some out from: name files with {flags}, or give more")
        return HeldOut(ends=ends)

    def _units(self) -> Iterator[str]:
        """What hashes call each file, row, line or paragraph that has text."""
        for file in self.files[TRAIN]:
            if not self._whole(file):
                yield from (key for key, piece in self._keyed(file) if piece.first)
            elif has_text(file.path):
                yield file.key
            elif file.named:
                raise BadData(f"{file.path}: the file is empty: there is no text in it; leave it out or give another")

    def _keyed(self, file: Found) -> Iterator[tuple[str, Piece]]:
        number, whole = -1, self._whole(file)
        for piece in self._all(file):
            number += piece.first
            yield file.key if whole else f"{file.key}:{number}", piece

    def _split_of(self, key: str) -> str:
        return self._how.moved.get(key) or split_by_hash(key, self._shares)

    def expected_bytes(self, split: str) -> int | None:
        files = self.files.get(split, self.files[TRAIN])
        if any(file.path.suffix.lower() in PACKED or file.kind == "parquet" for file in files):
            return None
        if not self._shared(split):
            return sum(file.path.stat().st_size for file in files)
        share = self._share(split) if split != TRAIN else 1.0 - sum(self._shares)
        by_hash = self._how.ends is None
        expected = 0.0
        for file in files:
            if by_hash and self._whole(file):
                expected += file.path.stat().st_size * (self._split_of(file.key) == split)
            else:
                expected += file.path.stat().st_size * share
        return int(expected)

    def pieces(self, split: str) -> Iterator[Piece]:
        self.check_split(split)
        found = self.files.get(split, self.files[TRAIN])
        given = self._part(found, split) if self._shared(split) else (p for file in found for p in self._all(file))
        empty = True
        for piece in given:
            empty = False
            yield piece
        if empty:
            others = " and others" if len(found) > 1 else ""
            raise BadData(f"{found[0].path}{others}: no text for split {split!r}; the files are empty")

    def _part(self, found: list[Found], split: str) -> Iterator[Piece]:
        ends = self._how.ends
        for file in found:
            if ends is None:
                if not self._whole(file) or self._split_of(file.key) == split:
                    yield from (piece for key, piece in self._keyed(file) if self._split_of(key) == split)
            elif self._whole(file):
                start, stop = ends.of(file.path, split)
                if start < stop:
                    yield from read_text(file.path, start=start, stop=stop)
            elif split == TRAIN:  # a row or two, beside the texts
                yield from self._all(file)

    def _all(self, file: Found) -> Iterator[Piece]:
        if file.kind == "text":
            yield from read_text(file.path, document=self.document, named=file.named)
            return
        for place, row in read_rows(file.path, file.kind):
            yield from in_pieces(text_column(place, row, self.column), place)


def in_pieces(text: str, place: Place) -> Iterator[Piece]:
    """The text of a row as pieces; nothing where it is empty."""
    data, first = text.encode("utf-8", "surrogatepass"), True
    while len(data) > PIECE:
        cut = cut_after_line(data[:PIECE])
        yield Piece(data[:cut], place, first, False)
        data, first = data[cut:], False
    if data:
        yield Piece(data, place, first, True)
