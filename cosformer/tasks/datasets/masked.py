"""Masked language modelling: which tokens are hidden is a function of (seed, epoch, index)."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cosformer.tasks.datasets.windows import IGNORED
from cosformer.tasks.keyed_random import key_of, uniforms, words
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
        self.ordinary = np.setdiff1d(np.arange(vocabulary), self.special)
        if not len(self.ordinary):
            raise ValueError(f"all {vocabulary} tokens are special: there is nothing to mask")
        self._epoch = torch.zeros(
            (), dtype=torch.int64
        ).share_memory_()  # seen by processes of a loader that already run

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def place(self, index: int) -> tuple[int, int]:
        """Of an item: its first token and the one after its last."""

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def copy(self) -> Self:
        """The same with an epoch of its own."""
        return type(self)(
            self.shards, self.length, mask=self.mask, special=self.special.tolist(), seed=self.seed, share=self.share
        )

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        inputs, labels = self.hide(self.shards.read(*self.place(index)).astype(np.int64), index)
        return {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}

    def hide(self, ids: np.ndarray, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens as the model sees them, and what it is to guess."""
        key = ("mask", self.seed, int(self._epoch), index)
        chosen = (uniforms(key_of(*key, "which"), len(ids)) < self.share) & ~np.isin(ids, self.special)
        how = uniforms(key_of(*key, "how"), len(ids))
        others = self.ordinary[words(key_of(*key, "other"), len(ids)) % np.uint64(len(self.ordinary))]
        inputs = np.where(chosen & (how < 0.8), self.mask, np.where(chosen & (how >= 0.9), others, ids))
        return inputs, np.where(chosen, ids, IGNORED)


class MaskedWindows(Masked):
    """Of running text, cut into windows of `length`."""

    def __len__(self) -> int:
        return -(-self.shards.tokens // self.length)

    def place(self, index: int) -> tuple[int, int]:
        start = index * self.length
        return start, min(start + self.length, self.shards.tokens)


class MaskedTexts(Masked):
    """Of examples: every text by itself, both of a pair; one that is too long loses its end. Labels are not read."""

    def __len__(self) -> int:
        return self.shards.examples * self.shards.manifest.texts

    def place(self, index: int) -> tuple[int, int]:
        start, end = self.shards.document(index)
        return start, min(start + self.length, end)
