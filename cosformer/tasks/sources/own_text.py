"""Text of the user's own for language models, in any of the formats, split as named or by hash."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData
from cosformer.tasks.pieces import Piece, Place
from cosformer.tasks.sources.files import PACKED, Found, find_files
from cosformer.tasks.sources.source import TEST, TRAIN, VALID, TextSource, split_by_hash, stamp_files
from cosformer.tasks.sources.tables import read_rows, text_column
from cosformer.tasks.sources.text_files import DOCUMENTS, PIECE, cut_after_line, line_end_after, read_text
from cosformer.tasks.sources.text_files import unpacked_length as length_of

Paths = Sequence[str | Path]


class TextFiles(TextSource):
    """Files, folders and patterns. Splits that are not named are held out from `train`.

    Held out are whole files where there are several, rows of tables, lines or paragraphs where these are documents
    (each by the hash of its name or number), or the end of a single text.
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
        files = [found.path for found in self.files.get(split, self.files[TRAIN])]
        return [split, self.column, self.document, list(self._shares), stamp_files(files)]

    def expected_bytes(self, split: str) -> int | None:
        files = self.files.get(split, self.files[TRAIN])
        if any(file.path.suffix.lower() in PACKED or file.kind == "parquet" for file in files):
            return None
        share = self._share(split) if split not in self.files else 1.0 - (sum(self._shares) if split == TRAIN else 0.0)
        return int(share * sum(file.path.stat().st_size for file in files))

    def pieces(self, split: str) -> Iterator[Piece]:
        self.check_split(split)
        found = self.files.get(split, self.files[TRAIN])
        shared = split not in self.files or (split == TRAIN and sum(self._shares) > 0)
        if not shared:
            given = (piece for file in found for piece in self._all(file))
        elif self._single:
            given = self._range(found[0].path, split)
        else:
            given = self._held_out(found, split)
        empty = True
        for piece in given:
            empty = False
            yield piece
        if empty:
            raise BadData(
                f"{found[0].path}{' and others' if len(found) > 1 else ''}: no text for split {split!r}"
                + (" was held out by hash; name files for it, or hold out more" if shared else "; the files are empty")
            )

    def _all(self, file: Found) -> Iterator[Piece]:
        if file.kind == "text":
            yield from read_text(file.path, document=self.document, named=file.named)
            return
        for place, row in read_rows(file.path, file.kind):
            yield from in_pieces(text_column(place, row, self.column), place)

    def _range(self, path: Path, split: str) -> Iterator[Piece]:
        """train, then valid, then test, cut after lines."""
        length = length_of(path)
        valid, test = self._shares
        cuts = [0, line_end_after(path, int(length * (1 - valid - test)))]
        cuts += [max(cuts[-1], line_end_after(path, int(length * (1 - test))) if test else length), length]
        at = (TRAIN, VALID, TEST).index(split)
        if cuts[at] < cuts[at + 1]:
            yield from read_text(path, start=cuts[at], stop=cuts[at + 1])

    def _held_out(self, found: list[Found], split: str) -> Iterator[Piece]:
        for file in found:
            whole = file.kind == "text" and self.document == "file"
            if whole and split_by_hash(file.path.name, self._shares) != split:
                continue
            number = -1
            for piece in self._all(file):
                number += piece.first
                if whole or split_by_hash(f"{file.path.name}:{number}", self._shares) == split:
                    yield piece


def in_pieces(text: str, place: Place) -> Iterator[Piece]:
    """The text of a row as pieces; nothing where it is empty."""
    data, first = text.encode("utf-8", "surrogatepass"), True
    while len(data) > PIECE:
        cut = cut_after_line(data[:PIECE])
        yield Piece(data[:cut], place, first, False)
        data, first = data[cut:], False
    if data:
        yield Piece(data, place, first, True)
