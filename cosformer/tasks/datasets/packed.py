"""Documents packed into rows without padding; those of a row do not see each other."""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from cosformer.tasks.shards.shard_set import ShardSet


class PackedDocuments(Dataset[dict[str, Tensor]]):
    """Row i holds whole documents, in their order, as many as fit into `length` tokens; longer ones are cut.

    Items: input_ids [n ≤ length], labels (the same), position_ids that start again with each document and cu_seqlens
    [documents + 1]. The collator joins rows.
    """

    def __init__(self, shards: ShardSet, length: int) -> None:
        if length < 2:
            raise ValueError(f"length={length}: a row of at least 2 tokens, or nothing is predicted")
        self.shards, self.length = shards, length
        self.rows = _row_starts(shards, length)

    def __len__(self) -> int:
        return len(self.rows) - 1

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        start, stop = int(self.rows[index]), int(self.rows[index + 1])
        ids = torch.from_numpy(self.shards.read(start, stop).astype(np.int64))
        begins = self.shards.starts_between(start, stop) - start
        offsets = np.unique(np.concatenate([[0], begins, [stop - start]])).astype(np.int32)
        positions = np.concatenate([np.arange(b - a) for a, b in pairwise(offsets)])
        return {
            "input_ids": ids,
            "labels": ids.clone(),
            "position_ids": torch.from_numpy(positions.astype(np.int64)),
            "cu_seqlens": torch.from_numpy(offsets),
        }


def _row_starts(shards: ShardSet, length: int) -> NDArray[np.int64]:
    """Where rows begin, and the end: 8 bytes a row. Starts of documents are looked at a stretch at a time."""
    rows, at, total = [0], 0, shards.tokens
    known, upto = np.zeros(0, np.int64), 0
    while at < total:
        limit = at + length
        if limit > upto and upto < total:
            upto = min(total, max(limit, at + (1 << 24)))
            known = shards.starts_between(at, upto + 1)
        if limit >= total:
            at = total
        else:
            found = int(np.searchsorted(known, limit, "right")) - 1  # the last document that begins by then
            at = int(known[found]) if found >= 0 and known[found] > at else limit
        rows.append(at)
    return np.asarray(rows, np.int64)
