"""The manifest beside the shards: what they hold, of which source, by which tokenizer. Written last."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import DamagedShard
from cosformer.tasks.shards.atomic import write_atomically
from cosformer.tasks.shards.format import VERSION, ShardRecord

NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    source: str
    split: str
    stamp: str
    """Hash of names, sizes and times of the source's files: equal, and nothing is read again."""
    text_sha256: str
    """Of all the text, by the hashes of the shards."""
    encoder: str
    """Fingerprint of the tokenizer and its marks."""
    vocab_size: int
    dtype: str
    bos: int | None
    eos: int | None
    texts: int
    """Documents per example; 0 where there are no examples."""
    classes: tuple[str, ...]
    tokens: int
    documents: int
    bytes: int
    words: int
    lines: int
    shards: tuple[ShardRecord, ...]
    unknown: int | None = None
    """Tokens that are <unk>; None: of an earlier version, which did not count them."""
    unknown_written: int = 0
    """How often the text itself has the word <unk>."""
    version: int = VERSION

    @property
    def examples(self) -> int:
        return self.documents // self.texts if self.texts else 0

    @property
    def spelt(self) -> bool:
        """Whether the tokens say all of the text: none stands for words that the text has and the vocabulary lacks."""
        return (self.unknown or 0) <= self.unknown_written

    @property
    def unknown_share(self) -> float:
        return (self.unknown or 0) / max(1, self.tokens)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_atomically(folder / NAME, [json.dumps(asdict(manifest), indent=1).encode()])


def read_manifest(folder: Path) -> Manifest:
    path = folder / NAME
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        if found.get("version") != VERSION:
            raise DamagedShard(f"{path}: version {found.get('version')}, this is {VERSION}: prepare the data again")
        names = {field.name for field in fields(Manifest)}
        found = {name: value for name, value in found.items() if name in names}
        found["shards"] = tuple(ShardRecord(**record) for record in found["shards"])
        found["classes"] = tuple(found["classes"])
        return Manifest(**found)
    except FileNotFoundError as error:
        raise DamagedShard(
            f"{folder}: no {NAME}: the data was never prepared, or not to its end; prepare it"
        ) from error
    except DamagedShard:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedShard(f"{path}: not a manifest ({error}): prepare the data again") from error
