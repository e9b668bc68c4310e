"""Masked language modelling: which tokens are hidden is a function of (seed, epoch, index)."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from cosformer.tasks.datasets.windows import IGNORED
from cosformer.tasks.keyed_random import GOLDEN, key_of, mix, shares
from cosformer.tasks.shards.rows import Rows
from cosformer.tasks.shards.shard_set import ShardSet


class Masked(Dataset[dict[str, Tensor]], ABC):
    """Tokens with `share` of them to be guessed: 80% of those masked, 10% another token, 10% as is.

    special: tokens that are neither hidden nor put in place of others. Items: input_ids and labels, at most `length` of
    each, −100 where nothing is to be guessed. set_epoch chooses other tokens, in loaders that already run too.
    """

    def __init__(
        self, shards: ShardSet, length: int, *, mask: int, special: Collection[int], seed: int = 0, share: float = 0.15
    ) -> None:
        vocabulary = shards.manifest.vocab_size
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share={share}: above 0 and at most 1")
        if length < 1:
            raise ValueError(f"length={length}: at least 1 token")
        self.shards, self.length, self.mask, self.seed, self.share = shards, length, mask, seed, share
        self.special = np.asarray(sorted({*special, mask}), np.int64)
        self.is_special = np.isin(np.arange(max(vocabulary, int(self.special.max()) + 1)), self.special)
        self.ordinary = np.setdiff1d(np.arange(vocabulary), self.special)
        if not len(self.ordinary):
            raise ValueError(f"all {vocabulary} tokens are special: there is nothing to mask")
        self._epoch = torch.zeros(
            (), dtype=torch.int64
        ).share_memory_()  # seen by processes of a loader that already run

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def places(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n, 2]: the first token of each item and the one after its last."""

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def copy(self) -> Self:
        """The same with an epoch of its own."""
        return type(self)(
            self.shards, self.length, mask=self.mask, special=self.special.tolist(), seed=self.seed, share=self.share
        )

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: torch.from_numpy(rows.values[0]) for name, rows in self.read_rows([index]).items()}

    def read_rows(self, indices: Sequence[int]) -> dict[str, Rows]:
        """These items at once, for PadCollator.join."""
        numbers = np.asarray(indices, np.int64)
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"item {index} of {len(self)}")
        found = self.shards.rows(self.places(numbers))
        inputs, labels = self.hide(found, numbers)
        return {"input_ids": Rows(inputs, found.lengths), "labels": Rows(labels, found.lengths)}

    def hide(self, rows: Rows, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens as the model sees them, and what it is to guess. Each row by its own index alone."""
        ids, count = rows.values, rows.values.shape[1]
        base = key_of("mask", self.seed, int(self._epoch))
        with np.errstate(over="ignore"):
            keys = mix(base + (indices.astype(np.uint64) + np.uint64(1)) * GOLDEN)  # [B]
            which, how, other = (mix(keys + np.uint64(i)) for i in (1, 2, 3))
            places = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
            drawn = shares(mix(which[:, None] + places))
            chosen = (drawn < self.share) & ~self.is_special[ids] & rows.real()
            flat = np.flatnonzero(chosen)  # much cheaper than pairs of indices
            line, place = np.divmod(flat, count) if count else (flat, flat)
            what = shares(mix(how[line] + places[place]))
            others = self.ordinary[mix(other[line] + places[place]) % np.uint64(len(self.ordinary))]
        true = ids.ravel()[flat]
        inputs, labels = ids.copy(), np.full_like(ids, IGNORED)
        labels.ravel()[flat] = true
        inputs.ravel()[flat] = np.where(what < 0.8, self.mask, np.where(what >= 0.9, others, true))
        return inputs, labels


class MaskedWindows(Masked):
    """Of running text, cut into windows of `length`."""

    def __len__(self) -> int:
        return -(-self.shards.tokens // self.length)

    def places(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        starts = indices * self.length
        return np.stack([starts, np.minimum(starts + self.length, self.shards.tokens)], 1)


class MaskedTexts(Masked):
    """Of examples: every text by itself, both of a pair; one that is too long loses its end. Labels are not read."""

    def __len__(self) -> int:
        return self.shards.examples * self.shards.manifest.texts

    def places(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        spans = self.shards.spans(indices)
        spans[:, 1] = np.minimum(spans[:, 1], spans[:, 0] + self.length)
        return spans
