"""A batch read at once: the same as its items one by one, without what each of them costs."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cosformer.tasks.encoders import Ids


class Rows(NamedTuple):
    """Sequences of unequal length, side by side from the left; what lies beyond a length has no meaning."""

    values: NDArray[np.int64]
    """[B, longest]"""
    lengths: NDArray[np.int64]
    """[B]"""

    def real(self) -> NDArray[np.bool_]:
        return np.arange(self.values.shape[1]) < self.lengths[:, None]

    @property
    def longest(self) -> int:
        return self.values.shape[1]

    def cut(self, longest: int) -> "Rows":
        """Of each row no more than its beginning."""
        return Rows(self.values[:, :longest], np.minimum(self.lengths, longest))

    def padded(self, fill: int, width: int, *, left: bool) -> Tensor:
        """[B, width]"""
        count, longest = self.values.shape
        if width == longest and bool((self.lengths == longest).all()):
            return torch.from_numpy(self.values)
        out = np.full((count, width), fill, np.int64)
        places = np.arange(width)
        there = places >= width - self.lengths[:, None] if left else places < self.lengths[:, None]
        out[there] = self.values[self.real()]  # both go row by row
        return torch.from_numpy(out)


def lit(stored: Ids, ends: NDArray[np.int64], blank: int, longest: int) -> dict[str, Rows]:
    """Tokens other than blank, at most so many of each row, and where they were in it. ends [B]: of the rows."""
    kept, width = stored != blank, stored.shape[1]
    if (ends != width).any():
        kept &= np.arange(width) < ends[:, None]
    flat, lengths = np.flatnonzero(kept), np.count_nonzero(kept, axis=1)
    there = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
    ids, places = np.zeros(there.shape, np.int64), np.zeros(there.shape, np.int64)
    ids[there] = stored.reshape(-1)[flat]  # both go row by row
    places[there] = flat - np.repeat(np.arange(len(lengths)) * width, lengths)
    return {"input_ids": Rows(ids, lengths).cut(longest), "position_ids": Rows(places, lengths).cut(longest)}


def marked(rows: Rows, bos: NDArray[np.int64], eos: NDArray[np.int64]) -> Rows:
    """With marks before and after each."""
    if not len(bos) and not len(eos):
        return rows
    count, longest = rows.values.shape
    out = np.zeros((count, longest + len(bos) + len(eos)), np.int64)
    out[:, : len(bos)] = bos
    out[:, len(bos) : len(bos) + longest] = rows.values
    ends = len(bos) + rows.lengths
    out[np.arange(count)[:, None], ends[:, None] + np.arange(len(eos))] = eos
    return Rows(out, ends + len(eos))
