"""Which examples a step takes: the same in any number of parts and processes, and after any interruption."""

from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from training_data import tiny

from cosformer.tasks import ResumableBatches
from cosformer.training.batches import RunBatches, as_is
from cosformer.training.cadence import seed_step
from cosformer.training.data import open_data


def run(length: int = 23, batch: int = 4, **options: int) -> RunBatches:
    keys = {k: options.pop(k) for k in ("rank", "world_size") if k in options}
    return RunBatches(ResumableBatches(length, batch, seed=3, **keys), **options)


def test_parts_together_are_the_step() -> None:
    whole = list(run(steps=9))
    for parts in (2, 3, 4):
        pieces = list(run(steps=9, parts=parts))
        assert len(pieces) == 9 * parts == len(run(steps=9, parts=parts))
        assert [list(chain(*pieces[i : i + parts])) for i in range(0, len(pieces), parts)] == whole
    assert all(whole)


def test_processes_together_are_the_step() -> None:
    whole = list(run(steps=9))
    halves = [list(run(steps=9, rank=rank, world_size=2)) for rank in (0, 1)]
    assert [a + b for a, b in zip(*halves, strict=True)] == whole


@pytest.mark.parametrize("start", [0, 1, 4, 5, 6, 8])
def test_goes_on_anywhere_also_between_epochs(start: int) -> None:
    whole = list(run(steps=9))
    assert [key[0] for batch in whole for key in batch[:1]] == [0] * 5 + [1] * 4  # 5 batches make an epoch
    again = run(steps=9, start=start)
    assert list(again) == whole[start:]
    assert list(again) == whole[start:]  # iterating twice changes nothing


def test_a_step_can_be_looked_up_meanwhile() -> None:
    whole, batches = list(run(steps=9)), run(steps=9)
    under_way = iter(batches)
    seen = list(islice(under_way, 3))
    assert [batches.of_step(step) for step in range(9)] == whole
    assert seen + list(under_way) == whole


def test_masks_follow_the_epoch_of_the_key_in_any_number_of_workers(tmp_path: Path) -> None:
    data = open_data(tiny("mlm-wikitext2", tmp_path / "data"), tmp_path / "cache")
    found = []
    for workers in (0, 2):
        length = len(data.dataset("train"))
        batches = run(length, length // 2, steps=5)  # two batches make an epoch: loaders read over its end
        loader = DataLoader(data.training_set(), batch_sampler=batches, collate_fn=as_is, num_workers=workers)
        found.append([batch["input_ids"] for batch in loader])
    for plain, ahead in zip(*found, strict=True):
        assert torch.equal(plain, ahead)
    fresh = data.training_set()
    assert not torch.equal(fresh[(0, 0)]["input_ids"], fresh[(1, 0)]["input_ids"])
    assert torch.equal(fresh[(0, 0)]["input_ids"], data.training_set()[(0, 0)]["input_ids"])


def test_seeding_a_step_draws_as_ever_and_leaves_nothing_behind() -> None:
    """torch.manual_seed keeps a printed stack per call for every kind of device that is not in use."""
    queued = sum(len(module._queued_calls) for module in (torch.cuda, torch.xpu, torch.mtia))  # pyright: ignore
    drawn = []
    for step in (3, 3, 4):
        seed_step(1, step, 0, torch.device("cpu"))
        drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert sum(len(module._queued_calls) for module in (torch.cuda, torch.xpu, torch.mtia)) == queued  # pyright: ignore
