"""Tokenises a split once. Killed at any moment, it goes on where it was; unchanged, it does nothing."""

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cosformer.tasks.encoders import ByteEncoder, Encoder
from cosformer.tasks.errors import BadData, DamagedShard
from cosformer.tasks.pieces import Example, Piece
from cosformer.tasks.shards.atomic import TEMPORARY, sync_folder
from cosformer.tasks.shards.building import Batch, Marks, build_shard
from cosformer.tasks.shards.format import VERSION, ShardRecord, dtype_for, shard_name, verify_shard
from cosformer.tasks.shards.manifest import NAME, Manifest, read_manifest, write_manifest
from cosformer.tasks.shards.shard_set import ShardSet
from cosformer.tasks.shards.unknown import count_unknown, count_written
from cosformer.tasks.shards.workers import WorkerPool, runs_elsewhere
from cosformer.tasks.sources.source import ExampleSource, Source, TextSource, stamp_hash

SHARD_BYTES = 16 << 20  # of text
SHARD_PIECES = 1 << 17  # short documents cost more memory than their text


@dataclass(frozen=True, slots=True)
class Progress:
    """Told after every shard."""

    split: str
    bytes: int
    """Bytes of text done."""
    expected: int | None
    """Bytes in all, where the source knows; never fewer than are done."""
    shards: int
    kept: int
    """Shards that were found finished."""
    done: bool = False


def prepare(
    source: Source, split: str, encoder: Encoder, folder: str | Path, *, marks: Marks | None = None,
    shard_bytes: int = SHARD_BYTES, workers: int | None = None, verify: bool = False,
    progress: Callable[[Progress], None] = lambda _: None, said: Callable[[str], None] = lambda _: None,
) -> ShardSet:  # fmt: skip
    """The shards of a split, made if they are not there. They lie in folder/split.

    What is there is used if source (names, sizes and times of its files), tokenizer and settings are the same; after a
    change the text is read again, and shards of unchanged text are kept. verify: compare the hashes of what is there;
    else the sizes alone are looked at. said: told of a shard that was damaged, which is made again.
    marks: tokens around documents. workers: processes; by default one per processor, none for bytes, which need none.
    """
    source.check_split(split)
    marks = marks or Marks()
    for name, token in asdict(marks).items():
        if token is not None and not 0 <= token < encoder.vocab_size:
            raise ValueError(f"marks: {name}={token}, but the vocabulary has {encoder.vocab_size} tokens")
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes={shard_bytes}: a shard holds some text; leave it at {SHARD_BYTES}")
    place = Path(folder) / split
    place.mkdir(parents=True, exist_ok=True)
    shaped = json.dumps([VERSION, encoder.fingerprint, asdict(marks), shard_bytes, SHARD_PIECES])
    fingerprint = hashlib.sha256(shaped.encode()).hexdigest()
    with _locked(place):
        stamp = stamp_hash([source.name, source.stamp(split)])
        with suppress(DamagedShard):  # there is none yet, or it cannot be read
            manifest = read_manifest(place)
            if (manifest.stamp, manifest.encoder) == (stamp, fingerprint):
                try:
                    shards = ShardSet(place, verify=verify)
                    if manifest.unknown is None:
                        write_manifest(place, _counted(manifest, source, place, encoder))
                        shards = ShardSet(place)
                    return shards
                except DamagedShard as error:
                    said(f"{error} (this is done now)")
        (place / NAME).unlink(missing_ok=True)  # from here on the folder is unfinished, and says so
        sync_folder(place)
        _check_space(place, source.expected_bytes(split), dtype_for(encoder.vocab_size))
        batches = _batches(source, split, shard_bytes)
        if workers is None:
            workers = 0 if isinstance(encoder, ByteEncoder) or not runs_elsewhere(encoder) else _processors()
        maker = _Maker(place, encoder, fingerprint, marks, workers)
        records, written = maker.run(batches, split, source.expected_bytes(split), progress)
        _remove_others(place, len(records))
        if not sum(record.tokens for record in records):
            raise BadData(f"{source.name}: split {split!r} has no text: there is nothing to prepare")
        manifest = _manifest(source, split, stamp, encoder, fingerprint, marks, records)
        unknown = count_unknown(place, records, encoder)
        write_manifest(place, replace(manifest, unknown=unknown, unknown_written=written))
        return ShardSet(place)


class _Maker:
    """Makes shards from batches, several at a time, and keeps those that are there."""

    def __init__(self, place: Path, encoder: Encoder, fingerprint: str, marks: Marks, workers: int) -> None:
        self.place, self.encoder, self.fingerprint, self.marks, self.workers = (
            place,
            encoder,
            fingerprint,
            marks,
            workers,
        )

    def run(
        self, batches: Iterator[Batch], split: str, expected: int | None, progress: Callable[[Progress], None]
    ) -> tuple[list[ShardRecord], int]:
        """Also how often the text has the word <unk>: it is read here, also where its shard is kept."""
        records: list[ShardRecord] = []
        written = 0
        waiting: deque[Future[ShardRecord]] = deque()
        kept = 0

        def tell(*, done: bool = False) -> None:
            size = sum(r.bytes for r in records)
            whole = None if expected is None else max(expected, size)
            progress(Progress(split, size, whole, len(records), kept, done))

        def collect() -> None:
            records.append(waiting.popleft().result())
            tell()

        with ExitStack() as stack:
            pool = None
            if self.workers:
                pool = WorkerPool(self.workers, self.encoder, self.fingerprint, self.marks)
                stack.push(lambda kind, *_: pool.close(now=kind is not None))
            for index, batch in enumerate(batches):
                path, digest = self.place / shard_name(index), batch.digest()
                written += count_written(batch.pieces, self.encoder)
                found = self._kept(path, digest)
                future: Future[ShardRecord] = Future()
                if found is not None:
                    future.set_result(found)
                    kept += 1
                elif pool is not None:
                    future = pool.submit(path, batch, digest)
                else:
                    future.set_result(build_shard(path, batch, digest, self.encoder, self.fingerprint, self.marks))
                waiting.append(future)
                while len(waiting) > self.workers:
                    collect()
            while waiting:
                collect()
        tell(done=True)
        return records, written

    def _kept(self, path: Path, digest: str) -> ShardRecord | None:
        """The shard that is there, if it was made of this text in this way and every byte is as written."""
        if not path.exists():
            return None
        with suppress(DamagedShard):
            record = verify_shard(path)
            if (record.text_sha256, record.encoder) == (digest, self.fingerprint):
                return record
        return None


def _batches(source: Source, split: str, shard_bytes: int) -> Iterator[Batch]:
    """Cut by text alone, so that the same text gives the same shards whatever the number of workers."""
    if isinstance(source, TextSource):
        groups: Iterable[tuple[list[Piece], list[int]]] = (([piece], []) for piece in source.pieces(split))
    elif isinstance(source, ExampleSource):
        groups = (_example(example, source) for example in source.examples(split))
    else:
        raise TypeError(f"{type(source).__name__} is neither a TextSource nor an ExampleSource")
    pieces: list[Piece] = []
    labels: list[int] = []
    size = 0
    for more, label in groups:
        pieces += more
        labels += label
        size += sum(len(piece.data) for piece in more)
        if size >= shard_bytes or len(pieces) >= SHARD_PIECES:
            yield Batch(pieces, labels)
            pieces, labels, size = [], [], 0
    if pieces:
        yield Batch(pieces, labels)


def _example(example: Example, source: ExampleSource) -> tuple[list[Piece], list[int]]:
    if len(example.texts) != source.texts:
        raise BadData(f"{example.place}: {len(example.texts)} texts where {source.name} has {source.texts}")
    pieces = [Piece(text.encode("utf-8", "surrogatepass"), example.place) for text in example.texts]
    return pieces, [] if example.label is None else [example.label]


def _manifest(
    source: Source, split: str, stamp: str, encoder: Encoder, fingerprint: str, marks: Marks, records: list[ShardRecord]
) -> Manifest:
    whole = hashlib.sha256("".join(record.text_sha256 for record in records).encode()).hexdigest()
    examples = source if isinstance(source, ExampleSource) else None
    return Manifest(
        source=source.name, split=split, stamp=stamp, text_sha256=whole, encoder=fingerprint,
        vocab_size=encoder.vocab_size, dtype=dtype_for(encoder.vocab_size), bos=marks.bos, eos=marks.eos,
        texts=examples.texts if examples else 0, classes=examples.classes if examples else (),
        tokens=sum(r.tokens for r in records), documents=sum(r.documents for r in records),
        bytes=sum(r.bytes for r in records), words=sum(r.words for r in records), lines=sum(r.lines for r in records),
        shards=tuple(records),
    )  # fmt: skip


def _counted(manifest: Manifest, source: Source, place: Path, encoder: Encoder) -> Manifest:
    """A manifest of an earlier version, completed once: text is read again only where tokens are <unk>."""
    unknown, written = count_unknown(place, manifest.shards, encoder), 0
    if unknown:
        batches = _batches(source, manifest.split, SHARD_BYTES)
        written = sum(count_written(batch.pieces, encoder) for batch in batches)
    return replace(manifest, unknown=unknown, unknown_written=written)


def _remove_others(place: Path, count: int) -> None:
    """Shards of an earlier, longer source, and what killed writers left."""
    wanted = {shard_name(index) for index in range(count)}
    for path in place.iterdir():
        if (path.suffix == ".shard" and path.name not in wanted) or path.suffix == TEMPORARY:
            path.unlink(missing_ok=True)


def _check_space(place: Path, text: int | None, dtype: str) -> None:
    if text is None:
        return
    there = sum(path.stat().st_size for path in place.glob("*.shard"))
    need, free = text * (2 if dtype == "uint16" else 4) - there, shutil.disk_usage(place).free
    if need > free:
        raise OSError(
            f"{place}: up to {need:,} bytes are needed for {text:,} bytes of text and {free:,} are free: name a folder "
            "on a larger disk (of a command: --cache)"
        )


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """One preparer at a time; others wait and find the work done. The system frees it when a process dies."""
    try:
        import fcntl
    except ImportError:  # not POSIX: whole files are still whole, but work may be done twice
        yield
        return
    with (place / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
