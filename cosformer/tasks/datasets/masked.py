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
from cosformer.tasks.keyed_random import GOLDEN, Words, is_below, key_of, mix
from cosformer.tasks.shards.rows import Rows, lit
from cosformer.tasks.shards.shard_set import ShardSet

AT_ONCE = 1 << 14  # tokens that are hidden at once


class Masked(Dataset[dict[str, Tensor]], ABC):
    """Tokens with `share` of them to be guessed: 80% of those masked, 10% another token, 10% as is.

    special: tokens that are neither hidden nor put in place of others. Items: input_ids and labels, at most `length` of
    each, −100 where nothing is to be guessed. set_epoch chooses other tokens, in loaders that already run too. blank: a
    token that is left out before any is hidden; position_ids then tell where the others were.
    """

    def __init__(
        self, shards: ShardSet, length: int, *, mask: int, special: Collection[int], seed: int = 0, share: float = 0.15,
        blank: int | None = None,
    ) -> None:  # fmt: skip
        vocabulary = shards.manifest.vocab_size
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share={share}: above 0 and at most 1")
        if length < 1:
            raise ValueError(f"length={length}: at least 1 token")
        self.shards, self.length, self.mask, self.seed, self.share = shards, length, mask, seed, share
        self.blank = blank
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
            self.shards, self.length, mask=self.mask, special=self.special.tolist(), seed=self.seed, share=self.share,
            blank=self.blank,
        )  # fmt: skip

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: torch.from_numpy(rows.values[0]) for name, rows in self.read_rows([index]).items()}

    def read_rows(self, indices: Sequence[int]) -> dict[str, Rows]:
        """These items at once, for PadCollator.join."""
        numbers = np.asarray(indices, np.int64)
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"item {index} of {len(self)}")
        spans = self.places(numbers)
        if self.blank is None:
            found, places = self.shards.rows(spans), {}
        else:
            places = lit(self.shards.stored_rows(spans), spans[:, 1] - spans[:, 0], self.blank, self.length)
            found = places.pop("input_ids")
        inputs, labels = self.hide(found, numbers)
        return {"input_ids": Rows(inputs, found.lengths), "labels": Rows(labels, found.lengths), **places}

    def hide(self, rows: Rows, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens as the model sees them, and what it is to guess. Each row by its own index alone."""
        base = key_of("mask", self.seed, int(self._epoch))
        with np.errstate(over="ignore"):
            keys = mix(base + (indices.astype(np.uint64) + np.uint64(1)) * GOLDEN)  # [B]
        inputs, labels, real = rows.values.copy(), np.full_like(rows.values, IGNORED), rows.real()
        several = max(1, AT_ONCE // max(1, rows.values.shape[1]))
        for start in range(0, len(keys), several):
            part = slice(start, start + several)
            self._hide(inputs[part], labels[part], real[part], keys[part])
        return inputs, labels

    def _hide(self, inputs: NDArray[np.int64], labels: NDArray[np.int64], real: NDArray[np.bool_], keys: Words) -> None:
        """Of a few rows, in place: small enough for a processor's cache."""
        count = inputs.shape[1]
        with np.errstate(over="ignore"):
            which, how, other = (mix(keys + np.uint64(i)) for i in (1, 2, 3))
            places = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
            chosen = is_below(mix(which[:, None] + places), self.share) & ~self.is_special[inputs] & real
            flat = np.flatnonzero(chosen)  # much cheaper than pairs of indices
            line = np.repeat(np.arange(len(keys)), chosen.sum(1))
            place = flat - line * count
            what = mix(how[line] + places[place])
            left = ~is_below(what, 0.8)
            swapped = left & ~is_below(what, 0.9)
            drawn = mix(other[line[swapped]] + places[place[swapped]])
        true = inputs.reshape(-1)[flat]
        labels.reshape(-1)[flat] = true
        shown = np.where(left, true, self.mask)
        shown[swapped] = self.ordinary[drawn % np.uint64(len(self.ordinary))]
        inputs.reshape(-1)[flat] = shown


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
        if self.blank is None:
            spans[:, 1] = np.minimum(spans[:, 1], spans[:, 0] + self.length)
        return spans
