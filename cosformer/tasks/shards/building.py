"""From a batch of text to a shard on disk. Runs in worker processes: imports neither torch nor the package's top."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosformer.tasks.encoders import Encoder, Ids
from cosformer.tasks.errors import BadData, piece_not_utf8
from cosformer.tasks.pieces import Piece
from cosformer.tasks.shards.format import DTYPES, ShardRecord, dtype_for, write_shard

AT_ONCE = 1 << 18  # bytes of text given to a tokenizer at a time: its results are large
SPACE = np.zeros(256, bool)
SPACE[list(b" \t\n\r\v\f")] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """Tokens put before and after each document."""

    bos: int | None = None
    eos: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The text of one shard: pieces, and a label per example where there are labels."""

    pieces: list[Piece]
    labels: list[int]

    def digest(self) -> str:
        """Of the text, of where documents begin and end, of the labels; not of the files' names."""
        found = hashlib.sha256()
        for piece in self.pieces:
            found.update(b"%d%d%d " % (piece.first, piece.last, len(piece.data)))
            found.update(piece.data)
        found.update(np.asarray(self.labels, "<i8").tobytes())
        return found.hexdigest()


def build_shard(path: Path, batch: Batch, digest: str, encoder: Encoder, fingerprint: str, marks: Marks) -> ShardRecord:
    dtype = dtype_for(encoder.vocab_size)
    parts: list[Ids] = []
    starts: list[int] = []
    length = 0
    for piece, ids in zip(batch.pieces, _encoded(batch.pieces, encoder), strict=True):
        if piece.first:
            starts.append(length)
        for part in (_mark(marks.bos if piece.first else None), ids, _mark(marks.eos if piece.last else None)):
            if len(part):
                parts.append(part.astype(DTYPES[dtype], copy=False))
                length += len(part)
    tokens = np.concatenate(parts) if parts else np.zeros(0, DTYPES[dtype])
    if len(tokens) and int(tokens.max()) >= encoder.vocab_size:
        raise ValueError(f"the encoder gave token {tokens.max()}, but its vocabulary has {encoder.vocab_size}")
    return write_shard(
        path, tokens, np.asarray(starts, "<i8"), np.asarray(batch.labels, "<i8"), dtype=dtype, encoder=fingerprint,
        text_sha256=digest, bytes=sum(len(piece.data) for piece in batch.pieces),
        words=sum(count_words(piece.data) for piece in batch.pieces),
        lines=sum(piece.data.count(b"\n") for piece in batch.pieces),
    )  # fmt: skip


def _mark(token: int | None) -> Ids:
    return np.zeros(0, np.int64) if token is None else np.asarray([token])


def count_words(text: bytes) -> int:
    """Runs of anything but ASCII spaces; pieces end after spaces, so no word is counted twice."""
    spaces = SPACE[np.frombuffer(text, np.uint8)]
    return 0 if not len(spaces) else int((~spaces[1:] & spaces[:-1]).sum()) + int(not spaces[0])


def _encoded(pieces: Sequence[Piece], encoder: Encoder) -> list[Ids]:
    found: list[Ids] = []
    at = 0
    while at < len(pieces):
        upto, size = at, 0
        while upto < len(pieces) and (upto == at or size + len(pieces[upto].data) <= AT_ONCE):
            size += len(pieces[upto].data)
            upto += 1
        try:
            found += encoder.encode([piece.data for piece in pieces[at:upto]])
        except UnicodeDecodeError as error:
            raise _not_text(pieces[at:upto], error) from error
        at = upto
    return found


def _not_text(pieces: Sequence[Piece], error: UnicodeDecodeError) -> BadData:
    for piece in pieces:
        try:
            piece.data.decode("utf-8")
        except UnicodeDecodeError as wrong:
            return piece_not_utf8(piece, wrong)
    return BadData(f"{pieces[0].place}: not UTF-8 ({error.reason})")
