"""A batch that is read at once is the batch of its items."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.tasks_data import Examples, shards_of

from cosformer.tasks import ByteEncoder, LabelledTexts, MaskedTexts, MaskedWindows, PadCollator, ShardSet, prepare
from cosformer.tasks.datasets import masked

Lengths = st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any)


def examples(folder: Path, lengths: list[int], texts: int, shard_bytes: int) -> ShardSet:
    rows = [(tuple(chr(97 + i) * (n + j) for j in range(texts)), i % 2) for i, n in enumerate(lengths)]
    return prepare(Examples(rows), "train", ByteEncoder(), folder, shard_bytes=shard_bytes)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


@settings(deadline=None, max_examples=60)
@given(
    lengths=Lengths, length=st.integers(3, 10), shard=st.integers(1, 40), marks=st.booleans(), left=st.booleans(),
    multiple=st.sampled_from([1, 4, 16]), always=st.booleans(), apart=st.booleans(), order=st.randoms(),
)  # fmt: skip
def test_of_labelled_texts(
    tmp_path_factory, lengths, length, shard, marks, left, multiple, always, apart, order
) -> None:
    shards = examples(tmp_path_factory.mktemp("l"), lengths, 2 if apart else 1, shard)
    ids = {"bos": 1, "eos": 2} if marks else {}
    data = LabelledTexts(shards, length, apart=apart, **ids)
    chosen = [order.randrange(len(data)) for _ in range(5)]
    collate = PadCollator(pad=0, multiple=multiple, left=left, always_mask=always)
    rows = data.read_rows(chosen)
    assert rows is not None
    same(collate.join(rows), collate([data[i] for i in chosen]))


@settings(deadline=None, max_examples=60)
@given(
    lengths=Lengths, length=st.integers(1, 10), shard=st.integers(1, 40), texts=st.integers(1, 2), order=st.randoms()
)
def test_of_masked_ones(tmp_path_factory, lengths, length, shard, texts, order) -> None:
    """What is hidden in a row does not depend on the rows beside it."""
    folder = tmp_path_factory.mktemp("m")
    running = shards_of(
        folder / "running", [[bytes([97 + i]) * (n + 1)] for i, n in enumerate(lengths)], shard_bytes=shard
    )
    kinds = [
        MaskedTexts(examples(folder / "examples", lengths, texts, shard), length, mask=0, special=(1, 2), share=0.4),
        MaskedWindows(running, length, mask=0, special=(1, 2), share=0.4),
    ]
    collate = PadCollator(pad=0, multiple=4)
    for data in kinds:
        data.set_epoch(3)
        chosen = [order.randrange(len(data)) for _ in range(5)]
        same(collate.join(data.read_rows(chosen)), collate([data[i] for i in chosen]))


def test_how_many_rows_are_hidden_at_once_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MaskedTexts(examples(tmp_path, [5, 0, 9, 12, 3], 1, 9), 12, mask=0, special=(1, 2), share=0.5)
    whole = data.read_rows(range(5))
    monkeypatch.setattr(masked, "AT_ONCE", 25)  # two rows
    for name, rows in data.read_rows(range(5)).items():
        assert np.array_equal(rows.values, whole[name].values)


def test_masked_texts_are_all_texts_and_no_labels(tmp_path: Path) -> None:
    shards = prepare(Examples([(("ab", "cdefgh"), 1), (("", "x"), 0)]), "train", ByteEncoder(), tmp_path)
    data = MaskedTexts(shards, 4, mask=0, special=(), share=0.5)
    assert len(data) == 4
    items = [data[i] for i in range(4)]
    true = [[3 + ord(c) for c in text] for text in ("ab", "cdef", "", "x")]
    for item, ids in zip(items, true, strict=True):
        assert len(item["input_ids"]) == len(ids)
        for seen, label, token in zip(item["input_ids"].tolist(), item["labels"].tolist(), ids, strict=True):
            assert label == token or (label == -100 and seen == token)
    with pytest.raises(IndexError, match="item 4 of 4"):
        data.read_rows([0, 4])


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(st.text("\0ab", max_size=9), min_size=1, max_size=6).filter(any), length=st.integers(1, 10),
    order=st.randoms(),
)  # fmt: skip
def test_what_is_blank_is_left_out(tmp_path_factory, texts, length, order) -> None:
    """Of one item, of a batch, and before anything is hidden."""
    rows = [((text,), i % 2) for i, text in enumerate(texts)]
    shards = prepare(Examples(rows), "train", ByteEncoder(), tmp_path_factory.mktemp("b"))
    blank = 3  # of byte 0
    data = LabelledTexts(shards, length, blank=blank)
    for item, text in zip((data[i] for i in range(len(texts))), texts, strict=True):
        lit = [(i, 3 + ord(letter)) for i, letter in enumerate(text) if letter != "\0"][:length]
        assert item["position_ids"].tolist() == [place for place, _ in lit]
        assert item["input_ids"].tolist() == [token for _, token in lit]
    hidden = MaskedTexts(shards, length, mask=0, special=(1, 2), share=0.5, blank=blank)
    for i, item in enumerate(hidden[i] for i in range(len(texts))):
        assert torch.equal(item["position_ids"], data[i]["position_ids"])
        guessed = item["labels"] != -100
        assert torch.equal(torch.where(guessed, item["labels"], item["input_ids"]), data[i]["input_ids"])
    chosen = [order.randrange(len(data)) for _ in range(5)]
    collate = PadCollator(pad=0, multiple=4)
    for kind in (data, hidden.copy()):
        read = kind.read_rows(chosen)
        assert read is not None
        same(collate.join(read), collate([kind[i] for i in chosen]))


def test_blanks_are_of_single_texts_without_marks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="blank=3: tokens are left out of single texts"):
        LabelledTexts(examples(tmp_path / "two", [3, 4], 2, 100), 8, apart=True, blank=3)
    with pytest.raises(ValueError, match="blank=3"):
        LabelledTexts(examples(tmp_path / "one", [3, 4], 1, 100), 8, eos=2, blank=3)


def test_two_texts_that_are_joined_are_read_one_by_one(tmp_path: Path) -> None:
    shards = examples(tmp_path, [3, 4], 2, 100)
    assert LabelledTexts(shards, 8).read_rows([0]) is None
    with pytest.raises(IndexError, match="example 2 of 2"):
        LabelledTexts(shards, 8, apart=True).read_rows([2])
