"""All shards of a split as one long row of tokens, read by place, a few shards mapped at a time."""

from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cosformer.tasks.encoders import Ids
from cosformer.tasks.errors import DamagedShard
from cosformer.tasks.shards.format import DTYPES, HEADER, read_record, shard_name, verify_shard
from cosformer.tasks.shards.manifest import read_manifest
from cosformer.tasks.shards.rows import Rows

MAPPED = 16  # shards mapped at once: bounds the memory that mapped pages can take


class Mapped(NamedTuple):
    starts: NDArray[np.int64]
    labels: NDArray[np.int64]
    tokens: Ids


class ShardSet:
    """Opened from the folder of a prepared split; every shard's size is checked, and its hash if verify=True.

    It pickles by its folder, so that loaders in other processes map the files themselves.
    """

    def __init__(self, folder: str | Path, *, verify: bool = False) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        for index, expected in enumerate(self.manifest.shards):
            path = self.folder / shard_name(index)
            if (verify_shard(path) if verify else read_record(path)) != expected:
                raise DamagedShard(f"{path}: it is not the shard of the manifest: prepare the data again")
        self._prepare_index()

    def _prepare_index(self) -> None:
        counts = [(shard.tokens, shard.documents, shard.labels) for shard in self.manifest.shards]
        ends = np.cumsum(np.asarray([(0, 0, 0), *counts], np.int64), 0)
        self._token_ends, self._document_ends, self._label_ends = ends.T.copy()
        self._maps: OrderedDict[int, Mapped] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare_index()

    @property
    def tokens(self) -> int:
        return self.manifest.tokens

    @property
    def documents(self) -> int:
        return self.manifest.documents

    @property
    def examples(self) -> int:
        return self.manifest.examples

    def read(self, start: int, stop: int) -> Ids:
        """A copy of tokens [start, stop), over as many shards as it takes."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens {start} to {stop} of {self.tokens}")
        out = np.empty(stop - start, DTYPES[self.manifest.dtype])
        at, shard = start, int(np.searchsorted(self._token_ends, start, "right")) - 1
        while at < stop:
            begin, end = self._token_ends[shard], min(stop, int(self._token_ends[shard + 1]))
            if end > at:
                out[at - start : end - start] = self._map(shard).tokens[at - begin : end - begin]
                at = end
            shard += 1
        return out

    def document(self, index: int) -> tuple[int, int]:
        """Where a document begins and ends among all tokens, marks included."""
        if not 0 <= index < self.documents:
            raise IndexError(f"document {index} of {self.documents}")
        return self._start(index), self.tokens if index + 1 == self.documents else self._start(index + 1)

    def _start(self, index: int) -> int:
        shard = int(np.searchsorted(self._document_ends, index, "right")) - 1
        return int(self._token_ends[shard] + self._map(shard).starts[index - self._document_ends[shard]])

    def spans(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n, 2]: where each of these documents begins and ends, as document() tells of one."""
        if len(documents) and not (documents.min() >= 0 and documents.max() < self.documents):
            raise IndexError(f"documents {documents.min()} to {documents.max()} of {self.documents}")
        ends = np.minimum(documents + 1, self.documents - 1)
        found = np.stack([self._starts(documents), self._starts(ends)], 1)
        found[documents + 1 == self.documents, 1] = self.tokens
        return found

    def _starts(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        shards = np.searchsorted(self._document_ends, documents, "right") - 1
        out = np.empty(len(documents), np.int64)
        for shard in np.unique(shards).tolist():
            own = shards == shard
            out[own] = self._token_ends[shard] + self._map(shard).starts[documents[own] - self._document_ends[shard]]
        return out

    def rows(self, spans: NDArray[np.int64]) -> Rows:
        """Copies of these stretches of tokens, side by side."""
        return Rows(self.stored_rows(spans).astype(np.int64), spans[:, 1] - spans[:, 0])

    def stored_rows(self, spans: NDArray[np.int64]) -> Ids:
        """The same [n, longest] as they are stored, in two or four bytes."""
        lengths = spans[:, 1] - spans[:, 0]
        longest = int(lengths.max(initial=0))
        out = np.zeros((len(spans), longest), DTYPES[self.manifest.dtype])
        shards = np.searchsorted(self._token_ends, spans[:, 0], "right") - 1
        left = lengths > 0  # there may be no shard behind the last token
        for shard in np.unique(shards[left]).tolist():
            begin, end = self._token_ends[shard], self._token_ends[shard + 1]
            alike = (shards == shard) & (lengths == longest) & (spans[:, 1] <= end)
            if alike.any():
                windows = np.lib.stride_tricks.sliding_window_view(self._map(shard).tokens, longest)
                out[alike] = windows[spans[alike, 0] - begin]
                left &= ~alike
        for place in np.flatnonzero(left).tolist():
            (start, stop), shard = spans[place].tolist(), int(shards[place])
            begin = int(self._token_ends[shard])
            if stop <= self._token_ends[shard + 1]:
                out[place, : stop - start] = self._map(shard).tokens[start - begin : stop - begin]
            else:
                out[place, : stop - start] = self.read(start, stop)
        return out

    def labels_at(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        shards = np.searchsorted(self._label_ends, examples, "right") - 1
        out = np.empty(len(examples), np.int64)
        for shard in np.unique(shards).tolist():
            own = shards == shard
            out[own] = self._map(shard).labels[examples[own] - self._label_ends[shard]]
        return out

    def starts_between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Where documents begin within tokens [start, stop)."""
        found = [np.zeros(0, np.int64)]
        shard = int(np.searchsorted(self._token_ends, start, "right")) - 1
        while shard < len(self.manifest.shards) and self._token_ends[shard] < stop:
            starts, begin = self._map(shard).starts, self._token_ends[shard]
            low, high = np.searchsorted(starts, (start - begin, stop - begin))
            found.append(starts[low:high] + begin)
            shard += 1
        return np.concatenate(found)

    def label(self, example: int) -> int:
        shard = int(np.searchsorted(self._label_ends, example, "right")) - 1
        return int(self._map(shard).labels[example - self._label_ends[shard]])

    def labels(self) -> NDArray[np.int64]:
        """All of them, for counting."""
        return np.concatenate([np.zeros(0, np.int64), *(self._map(i).labels for i in range(len(self.manifest.shards)))])

    def _map(self, shard: int) -> Mapped:
        found = self._maps.get(shard)
        if found is not None:
            self._maps.move_to_end(shard)
            return found
        record, path = self.manifest.shards[shard], self.folder / shard_name(shard)
        raw = np.memmap(path, np.uint8, "r")
        if len(raw) != record.size:  # a mapping past the end of a file would end the process
            raise DamagedShard(f"{path}: {len(raw):,} bytes where {record.size:,} were written: prepare the data again")
        cuts = np.cumsum([HEADER, 8 * record.documents, 8 * record.labels])
        starts, labels = (np.asarray(raw[cuts[i] : cuts[i + 1]]).view("<i8") for i in (0, 1))
        found = self._maps[shard] = Mapped(starts, labels, np.asarray(raw[cuts[2] :]).view(DTYPES[record.dtype]))
        if len(self._maps) > MAPPED:
            self._maps.popitem(last=False)
        return found
