"""Which examples make which batch: shuffled by (seed, epoch), split over processes, resumed at any batch."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from cosformer.tasks.keyed_random import Permutation

BLOCK = 1 << 14  # places computed at a time


class ResumableBatches(Sampler[list[int]]):
    """Lists of indices, for DataLoader(batch_sampler=...). Every epoch is a new order of all `length` examples.

    batch_size counts the examples of one step over all processes; each of `world_size` processes gets its share of it.
    The order depends on seed and epoch alone, so a run goes on with another number of processes. drop_last: leaves out
    the last, smaller batch of an epoch; else it is shared as evenly as can be, and a process may get nothing of it.
    """

    def __init__(
        self, length: int, batch_size: int, *, seed: int = 0, shuffle: bool = True, drop_last: bool = True,
        rank: int = 0, world_size: int = 1,
    ) -> None:  # fmt: skip
        if batch_size < 1 or batch_size % world_size:
            raise ValueError(
                f"a batch of {batch_size} over {world_size} processes: it counts the examples of all of them, so it "
                f"must be a multiple of {world_size} above 0 (train.batch, batch_size)"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} of {world_size} processes: from 0 to {world_size - 1}")
        if length < 1 or (drop_last and length < batch_size):
            raise ValueError(
                f"{length} examples make no batch of {batch_size}: use a smaller batch (train.batch, batch_size), or "
                "give more data"
            )
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.shuffle, self.drop_last, self.rank, self.world_size = shuffle, drop_last, rank, world_size
        self.epoch, self.batch = 0, 0

    @property
    def batches(self) -> int:
        """Steps of a whole epoch."""
        return self.length // self.batch_size if self.drop_last else -(-self.length // self.batch_size)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of the epoch; when it ends, the next one is up."""
        order = Permutation(self.length, self.seed, self.epoch)
        block, begin = order.slice(0, 0), 0
        while self.batch < self.batches:
            start = self.batch * self.batch_size
            stop = min(start + self.batch_size, self.length)
            if self.shuffle and not (begin <= start and stop <= begin + len(block)):
                begin, block = start, order.slice(start, min(self.length, max(stop, start + BLOCK)))
            whole = block[start - begin : stop - begin].tolist() if self.shuffle else list(range(start, stop))
            count = len(whole)
            mine = whole[count * self.rank // self.world_size : count * (self.rank + 1) // self.world_size]
            self.batch += 1
            if mine:
                yield mine
        self.epoch, self.batch = self.epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Another epoch from its beginning; the present one stays where it is."""
        if epoch != self.epoch:
            self.epoch, self.batch = epoch, 0

    def state_after(self, steps: int) -> dict[str, Any]:
        """The state after so many steps of training from the beginning: exact even while a loader has read ahead."""
        epoch, batch = divmod(steps, self.batches)
        return {**self._settings(), "epoch": epoch, "batch": batch}

    def state_dict(self) -> dict[str, Any]:
        """The state after the batches given out so far; a loader with workers asks for more than it has passed on."""
        epoch, batch = (self.epoch, self.batch) if self.batch < self.batches else (self.epoch + 1, 0)
        return {**self._settings(), "epoch": epoch, "batch": batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken; the number of processes may be another."""
        for name, ours in self._settings().items():
            if state.get(name) != ours:
                raise ValueError(
                    f"the saved order has {name}={state.get(name)}, this run {name}={ours}: the batches would be "
                    f"others; resume with the saved {name}"
                )
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])

    def _settings(self) -> dict[str, Any]:
        names = ("length", "batch_size", "seed", "shuffle", "drop_last")
        return {name: getattr(self, name) for name in names}
