"""Words a vocabulary lacks become one token (<unk>), which does not spell them: how many of a split's tokens are it."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from cosformer.tasks.encoders import Encoder, TokenizerEncoder, Unknown
from cosformer.tasks.pieces import Piece
from cosformer.tasks.shards.format import DTYPES, HEADER, ShardRecord, shard_name


def unknown_of(encoder: Encoder) -> Unknown | None:
    return encoder.unknown if isinstance(encoder, TokenizerEncoder) else None


def count_unknown(place: Path, records: Sequence[ShardRecord], encoder: Encoder) -> int:
    """Of the tokens in finished shards, so that shards that are kept need not be tokenised again."""
    unknown = unknown_of(encoder)
    if unknown is None:
        return 0
    found = 0
    for index, record in enumerate(records):
        if record.tokens:  # nothing cannot be mapped
            offset = HEADER + 8 * (record.documents + record.labels)
            tokens = np.memmap(place / shard_name(index), DTYPES[record.dtype], "r", offset, (record.tokens,))
            found += int(np.count_nonzero(tokens == unknown.id))
    return found


def count_written(pieces: Iterable[Piece], encoder: Encoder) -> int:
    """Where the text itself has the word: so WikiText is published. Pieces end after spaces, as for words."""
    unknown = unknown_of(encoder)
    if unknown is None:
        return 0
    word = re.compile(rb"(?<!\S)" + re.escape(unknown.word.encode()) + rb"(?!\S)")
    return sum(len(word.findall(piece.data)) for piece in pieces)
