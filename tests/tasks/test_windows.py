"""Every token is a target exactly once, with the context that was promised."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.tasks_data import shards_of
from torch.utils.data import DataLoader

from cosformer.tasks import PadCollator, Windows


@settings(deadline=None, max_examples=100)
@given(
    length=st.integers(2, 60), context=st.integers(1, 70), stride=st.integers(1, 70), first=st.sampled_from([None, 1]),
    shard=st.integers(1, 40),
)  # fmt: skip
def test_windows_cover_every_target_once(tmp_path_factory, length, context, stride, first, shard) -> None:
    stride = min(stride, context)
    text = bytes(range(length))  # all different, so that a token says where it stands
    cut = [[text[i : i + 5] for i in range(0, length, 5)]]
    shards = shards_of(tmp_path_factory.mktemp("w"), cut, shard_bytes=shard)
    windows = Windows(shards, context, stride=stride, first=first)
    targets = []
    for index in range(len(windows)):
        item = windows[index]
        ids, labels = item["input_ids"], item["shift_labels"]
        assert len(ids) == len(labels) == min(context, windows.targets)
        counted = labels != -100
        assert counted.any()
        assert counted.int().diff().ge(0).all()  # what counts is at the end
        for place in counted.nonzero()[:, 0].tolist():
            target, before = int(labels[place]), int(ids[place])
            assert target == before + 1 or (before == first and target == 3)
            targets.append(target)
            if index:
                assert place + 1 > context - stride
    assert targets == list(range(3 + (first is None), 3 + length))
    with pytest.raises(IndexError):
        windows[len(windows)]


def test_a_loader_with_processes_gives_the_same(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [[bytes(range(200))]])
    windows = Windows(shards, 16)
    batches = [list(DataLoader(windows, 4, num_workers=n, collate_fn=PadCollator(pad=0))) for n in (0, 1)]
    assert len(batches[0]) == len(batches[1]) == 4
    for one, two in zip(*batches, strict=True):
        assert one.keys() == two.keys() == {"input_ids", "shift_labels"}  # nothing padded: no mask
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_is_refused(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [[b"a"]])
    with pytest.raises(ValueError, match="1 ≤ stride ≤ context"):
        Windows(shards, 8, stride=9)
    with pytest.raises(ValueError, match="there is none to predict"):
        Windows(shards, 8)
    assert len(Windows(shards, 8, first=1)) == 1
