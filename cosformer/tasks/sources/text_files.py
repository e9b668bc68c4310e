"""Reads plain text as pieces of documents: a file is a document, or a line is, or a paragraph."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cosformer.tasks.errors import BadData
from cosformer.tasks.pieces import Piece, Place
from cosformer.tasks.sources.files import PACKED, open_bytes

BOM = b"\xef\xbb\xbf"  # what some editors begin a file with; no letter
PIECE = 1 << 20  # bytes; a line longer than this comes in parts
SURELY_TEXT = 1 << 10  # bytes: packed files that hold nothing are smaller
DOCUMENTS = ("file", "line", "paragraph")


def read_text(
    path: Path, *, document: str = "file", named: bool = False, start: int = 0, stop: int | None = None
) -> Iterator[Piece]:
    """Pieces of at most a MiB, cut after a line where there is one. A file that was named may not be empty.

    start, stop: only these bytes (unpacked) of the file, as one document.
    """
    if document not in DOCUMENTS:
        raise ValueError(f"document={document!r} is unknown: use one of {', '.join(DOCUMENTS)}")
    empty = True
    for piece in _as_one(path, start, stop) if document == "file" else _parts(path, document):
        empty = False
        yield piece
    if empty and named:
        raise BadData(f"{path}: the file is empty: there is no text in it; leave it out or give another")


def _as_one(path: Path, start: int, stop: int | None) -> Iterator[Piece]:
    line, first, waiting, at_start = 1, True, b"", start == 0
    left = None if stop is None else stop - start
    with open_bytes(path) as stream:
        line += _skip(stream, start)
        while True:
            room = PIECE - len(waiting)
            block = stream.read(room if left is None else min(room, left))
            left = None if left is None else left - len(block)
            text = waiting + (block.removeprefix(BOM) if at_start else block)
            at_start = False
            if not block:
                if text:
                    yield Piece(text, Place(str(path), line), first, True)
                return
            cut = cut_after_line(text) if len(text) == PIECE else 0
            if cut:  # something is always kept back, so that the last piece is known as the last
                yield Piece(text[:cut], Place(str(path), line), first, False)
                line, first = line + text.count(b"\n", 0, cut), False
            waiting = text[cut:]


def _skip(stream: BinaryIO, bytes_: int) -> int:
    """Lines in what was passed over."""
    lines = 0
    while bytes_ > 0 and (block := stream.read(min(PIECE, bytes_))):
        lines += block.count(b"\n")
        bytes_ -= len(block)
    return lines


def unpacked_length(path: Path) -> int:
    """Bytes of text in a file; a packed one is read through."""
    if path.suffix.lower() not in PACKED:
        return path.stat().st_size
    length = 0
    with open_bytes(path) as stream:
        while block := stream.read(PIECE):
            length += len(block)
    return length


def line_end_after(path: Path, at: int) -> int:
    """The first place from `at` on that follows a line end, looking a piece ahead; else one between letters."""
    ahead = _ahead(path, at, PIECE)
    found = ahead.find(b"\n")
    return at + found + 1 if found >= 0 else at + _letter_in(ahead)


def letter_after(path: Path, at: int) -> int:
    """The first place from `at` on that is between letters."""
    return at + _letter_in(_ahead(path, at, 4))


def _ahead(path: Path, at: int, size: int) -> bytes:
    with open_bytes(path) as stream:
        stream.seek(at)
        return stream.read(size)


def _letter_in(text: bytes) -> int:
    return next((i for i, byte in enumerate(text) if byte & 0xC0 != 0x80), len(text))


def has_text(path: Path) -> bool:
    """Whether there is anything in a file but a mark at its beginning."""
    if path.stat().st_size > SURELY_TEXT:
        return True
    with open_bytes(path) as stream:
        return bool(stream.read(len(BOM) + 1).removeprefix(BOM))


def cut_after_line(text: bytes) -> int:
    """After a line, or between letters of UTF-8 where no line ends in the second half; never at the end."""
    at = text.rfind(b"\n", len(text) // 2, len(text) - 1)
    return at + 1 if at >= 0 else cut_before_last_letter(text)


def cut_before_last_letter(text: bytes) -> int:
    at = len(text) - 1
    while at > len(text) - 4 and at > 0 and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _parts(path: Path, document: str) -> Iterator[Piece]:
    """Lines, or lines up to an empty one. A part longer than a piece is given in pieces too."""
    open_part: list[bytes] = []
    size, first, begun, number = 0, True, 1, 0
    with open_bytes(path) as stream:
        whole_line, kept = True, b""
        while raw := kept + stream.readline(PIECE - len(kept)):
            full = len(raw) == PIECE
            raw = raw if number else raw.removeprefix(BOM)
            number += whole_line
            starts_line, whole_line = whole_line, raw.endswith(b"\n")
            cut = cut_before_last_letter(raw) if full and not whole_line else len(raw)
            raw, kept = raw[:cut], raw[cut:]
            text = raw.rstrip(b"\r\n") if document == "line" and whole_line else raw
            ends = whole_line if document == "line" else (starts_line and not raw.strip())
            if ends and document == "paragraph":
                text = b""
            if text:
                if size + len(text) > PIECE and open_part:
                    yield Piece(b"".join(open_part), Place(str(path), begun), first, False)
                    open_part, size, first = [], 0, False
                if not open_part:
                    begun = number
                open_part.append(text)
                size += len(text)
            if ends:
                if open_part:
                    yield Piece(b"".join(open_part), Place(str(path), begun), first, True)
                open_part, size, first = [], 0, True
        if open_part:
            yield Piece(b"".join(open_part), Place(str(path), begun), first, True)
