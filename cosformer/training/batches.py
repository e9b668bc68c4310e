"""Which examples each step takes, over all epochs of a run, as micro-batches of this process."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset, Sampler

from cosformer.tasks import Masked, ResumableBatches

Key = tuple[int, int]
"""Epoch and index: what an item may depend on, however far ahead a loader reads."""


class ByEpoch(Dataset[dict[str, Tensor]]):
    """Items that are the same in every epoch; a loader is given whole batches, read at once where that can be done."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        self.dataset, self.collate = dataset, collate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> dict[str, Tensor]:
        return self.dataset[key[1]]

    def __getitems__(self, keys: list[Key]) -> dict[str, Tensor]:
        """The batch of these keys, all of one epoch."""
        self._at(keys[0][0])
        indices = [index for _, index in keys]
        rows = self.dataset.read_rows(indices) if hasattr(self.dataset, "read_rows") else None
        if rows is None or not hasattr(self.collate, "join"):
            return self.collate([self.dataset[index] for index in indices])
        return self.collate.join(rows)

    def _at(self, epoch: int) -> None:
        """Before items of an epoch are read."""


class MaskedByEpoch(ByEpoch):
    """Other tokens are hidden in every epoch. The epoch comes with the key: loaders read ahead over its end."""

    def __init__(self, dataset: Masked, collate: Any) -> None:
        super().__init__(dataset, collate)
        self.epoch = 0

    def __getitem__(self, key: Key) -> dict[str, Tensor]:
        self._at(key[0])
        return self.dataset[key[1]]

    def _at(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.dataset = self.dataset.copy()  # its own, as that of another worker may be at another epoch
            self.dataset.set_epoch(epoch)
            self.epoch = epoch


def as_is(batch: Any) -> Any:
    """What a loader does with a batch of ByEpoch: nothing."""
    return batch


class RunBatches(Sampler[list[Key]]):
    """The micro-batches of steps `start` … `steps` − 1, epoch after epoch; `parts` of them make a step."""

    def __init__(self, batches: ResumableBatches, *, steps: int, parts: int = 1, start: int = 0) -> None:
        self.batches, self.steps, self.parts, self.start = batches, steps, parts, start

    def __len__(self) -> int:
        """Of the whole run, also where it goes on."""
        return self.steps * self.parts

    def __iter__(self) -> Iterator[list[Key]]:
        self.batches.load_state_dict(self.batches.state_after(self.start))
        done = self.start
        while done < self.steps:
            for mine in self.batches:
                epoch = self.batches.epoch
                yield from self.split([(epoch, index) for index in mine])
                done += 1
                if done == self.steps:
                    return

    def split(self, keys: list[Key]) -> list[list[Key]]:
        """This process's share of a step as micro-batches."""
        cuts = [len(keys) * part // self.parts for part in range(self.parts + 1)]
        return [keys[begin:end] for begin, end in pairwise(cuts)]

    def of_step(self, step: int) -> list[Key]:
        """What this process reads in the update after `step` updates."""
        one = RunBatches(self.batches, steps=step + 1, start=step)
        state = self.batches.state_dict()
        found = next(iter(one))
        self.batches.load_state_dict(state)
        return found
