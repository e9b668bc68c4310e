"""One shard: a page of JSON that describes it, then starts of documents, labels, tokens.

    bytes 0–4095   JSON, padded with spaces
    then           int64[documents]  where each document begins, counted in tokens of this shard
    then           int64[labels]     one per example, none for plain text
    then           uint16 or uint32 [tokens]

Everything is little-endian. A document that began in an earlier shard has no start here.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from cosformer.tasks.encoders import Ids
from cosformer.tasks.errors import DamagedShard
from cosformer.tasks.shards.atomic import write_atomically

VERSION = 1
HEADER = 4096
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRecord:
    """What a shard says of itself, and a manifest of it."""

    tokens: int
    documents: int
    labels: int
    dtype: str
    bytes: int
    """Bytes of text."""
    words: int
    lines: int
    text_sha256: str
    """Of the text and of where its documents begin and end."""
    encoder: str
    """Fingerprint of the encoder and of the settings that shaped the tokens."""
    sha256: str
    """Of what follows the header."""

    @property
    def size(self) -> int:
        return HEADER + 8 * (self.documents + self.labels) + DTYPES[self.dtype].itemsize * self.tokens


def shard_name(index: int) -> str:
    return f"{index:05d}.shard"


def dtype_for(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def write_shard(path: Path, tokens: Ids, starts: Ids, labels: Ids, **described: Any) -> ShardRecord:
    """Writes it whole or not at all. described: the fields of ShardRecord that are not counted here."""
    dtype = described["dtype"]
    parts = [np.ascontiguousarray(a, t) for a, t in ((starts, "<i8"), (labels, "<i8"), (tokens, DTYPES[dtype]))]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.data)
    record = ShardRecord(
        tokens=len(tokens), documents=len(starts), labels=len(labels), sha256=digest.hexdigest(), **described
    )
    header = json.dumps({"cosformer shard": VERSION, **asdict(record)}).encode()
    if len(header) > HEADER:
        raise ValueError(f"{path}: its description takes {len(header)} bytes of {HEADER}")
    write_atomically(path, [header.ljust(HEADER), *(part.data for part in parts)])
    return record


def read_record(path: Path) -> ShardRecord:
    """The description of a shard; raises DamagedShard where there is none or the file has another size."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER)
        found = json.loads(header)
        version = found.pop("cosformer shard")
        if version != VERSION:
            raise DamagedShard(f"{path}: version {version} of the format, this is {VERSION}: prepare the data again")
        record = ShardRecord(**{field.name: found[field.name] for field in fields(ShardRecord)})
    except FileNotFoundError as error:
        raise DamagedShard(
            f"{path}: the shard is missing: prepare the data again, the other shards are kept"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DamagedShard):
            raise
        raise DamagedShard(f"{path}: its first page is not that of a shard: prepare the data again") from error
    if path.stat().st_size != record.size:
        raise DamagedShard(
            f"{path}: {path.stat().st_size:,} bytes where {record.size:,} were written: prepare the data again; whole "
            "shards are kept"
        )
    return record


def verify_shard(path: Path) -> ShardRecord:
    """Reads all of it and compares the hash."""
    record = read_record(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(HEADER)
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != record.sha256:
        raise DamagedShard(f"{path}: its bytes are not those that were written: prepare the data again")
    return record
