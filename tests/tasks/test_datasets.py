"""Packed documents, masked windows, examples, and the batches made of them."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.tasks_data import Examples, shards_of
from torch.utils.data import DataLoader

from cosformer.models import CosformerConfig, CosformerForCausalLM, CosformerForMaskedLM
from cosformer.tasks import (
    ByteEncoder,
    LabelledTexts,
    MaskedWindows,
    PackCollator,
    PackedDocuments,
    PadCollator,
    SequencePairs,
    ShardSet,
    Windows,
    prepare,
)  # fmt: skip
from cosformer.tasks.datasets.examples import fit


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=15), length=st.integers(2, 12), shard=st.integers(1, 40)
)
def test_packed_rows_hold_every_token_once(tmp_path_factory, lengths: list[int], length: int, shard: int) -> None:
    documents = [[bytes([i]) * n] for i, n in enumerate(lengths)]
    shards = shards_of(tmp_path_factory.mktemp("p"), documents, shard_bytes=shard)
    packed = PackedDocuments(shards, length)
    rows = [packed[i] for i in range(len(packed))]
    assert torch.cat([row["input_ids"] for row in rows]).tolist() == [
        3 + i for i, n in enumerate(lengths) for _ in range(n)
    ]
    for row in rows:
        ids, offsets = row["input_ids"], row["cu_seqlens"].tolist()
        assert len(ids) <= length
        assert offsets[0] == 0
        assert offsets[-1] == len(ids)
        for start, stop in pairwise(offsets):
            assert len(set(ids[start:stop].tolist())) == 1  # one document
            assert row["position_ids"][start:stop].tolist() == list(range(stop - start))
        if len(rows) > 1:  # a document that fits is never cut
            for token in set(ids.tolist()):
                n = lengths[token - 3]
                assert n > length or (ids == token).sum() == n


def test_a_model_takes_packed_batches(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [[b"abc"], [b"defgh"], [b"ij"], [b"klmnopqrstuv"]], eos=2)
    packed = PackedDocuments(shards, 8)
    batch = PackCollator(pad=0, multiple=16)([packed[i] for i in range(len(packed))])
    assert batch["input_ids"].shape[1] % 16 == 0
    assert (batch["labels"] == -100).sum() == batch["input_ids"].shape[1] - shards.tokens
    config = CosformerConfig(vocab_size=259, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, horizon=64)
    model = CosformerForCausalLM(config).eval()
    loss = model(input_ids=batch["input_ids"], labels=batch["labels"], cu_seqlens=batch["cu_seqlens"]).loss
    total, count = torch.zeros(()), 0
    for i in range(len(packed)):
        offsets = packed[i]["cu_seqlens"].tolist()
        for start, stop in pairwise(offsets):
            ids = packed[i]["input_ids"][None, start:stop]
            if stop - start > 1:
                total, count = total + model(ids, labels=ids).loss * (stop - start - 1), count + stop - start - 1
    assert torch.allclose(loss, total / count, atol=1e-5)
    windows = PadCollator(pad=0)([Windows(shards, 6)[0]])
    assert model(**windows).loss.isfinite()


@pytest.fixture
def text(tmp_path: Path) -> ShardSet:
    return shards_of(
        tmp_path, [[bytes(np.random.default_rng(0).integers(0, 256, 20_000, np.uint8))]], shard_bytes=5000, eos=2
    )


def test_masking_is_a_function_of_seed_epoch_and_index(text: ShardSet) -> None:
    def masked(seed: int = 0) -> MaskedWindows:
        return MaskedWindows(text, 512, mask=0, special=(1, 2), seed=seed)

    one, two = masked(), masked()
    assert all(torch.equal(one[5][name], two[5][name]) for name in ("input_ids", "labels"))
    assert not torch.equal(one[5]["labels"], masked(seed=1)[5]["labels"])
    first = one[5]["labels"]
    loader = DataLoader(one, 40, num_workers=1, persistent_workers=True, collate_fn=PadCollator(pad=0))
    before = next(iter(loader))["labels"]
    one.set_epoch(1)  # reaches a process that already runs
    after = next(iter(loader))["labels"]
    assert torch.equal(before[5], first)
    assert not torch.equal(after[5], first)
    assert torch.equal(after[5], one[5]["labels"])


def test_masking_has_its_shares_and_spares_special_tokens(text: ShardSet) -> None:
    data = MaskedWindows(text, 1000, mask=0, special=(1, 2))
    inputs = torch.cat([data[i]["input_ids"] for i in range(len(data))])
    labels = torch.cat([data[i]["labels"] for i in range(len(data))])
    truth = torch.from_numpy(text.read(0, text.tokens).astype(np.int64))
    chosen = labels != -100
    assert torch.equal(inputs[~chosen], truth[~chosen])
    assert torch.equal(labels[chosen], truth[chosen])
    assert not chosen[truth == 2].any()
    count = int(chosen.sum())
    assert abs(count / len(truth) - 0.15) < 0.01
    hidden = (inputs[chosen] == 0).sum() / count
    same = (inputs[chosen] == truth[chosen]).sum() / count
    assert abs(hidden - 0.8) < 0.03
    assert abs(same - 0.1) < 0.03
    others = inputs[chosen & (inputs != 0) & (inputs != truth)]
    assert len(others) > 0
    assert others.min() >= 3
    config = CosformerConfig(
        vocab_size=259, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, horizon=1024, causal=False
    )
    assert CosformerForMaskedLM(config)(**PadCollator(pad=0)([data[0], data[len(data) - 1]])).loss.isfinite()
    with pytest.raises(ValueError, match="share=0"):
        MaskedWindows(text, 8, mask=0, special=(), share=0)
    with pytest.raises(ValueError, match="all 259 tokens are special"):
        MaskedWindows(text, 8, mask=0, special=range(259))


PAIRS = [(("abcdefgh", "xy"), 1), (("ab", "uvwxyz"), 0), (("", "z"), 1)]


@pytest.fixture
def pairs(tmp_path: Path) -> ShardSet:
    return prepare(Examples(PAIRS), "train", ByteEncoder(), tmp_path, shard_bytes=5)


def spelt(ids: torch.Tensor) -> str:
    return "".join("_<>"[i] if i < 3 else chr(i - 3) for i in ids.tolist())


def test_pairs_joined_and_apart(pairs: ShardSet) -> None:
    joined = LabelledTexts(pairs, 9, bos=1, eos=2)
    assert joined.classes == ("no", "yes")
    assert [spelt(joined[i]["input_ids"]) for i in range(3)] == ["<abcd>xy>", "<ab>uvwx>", "<>z>"]
    assert [int(joined[i]["labels"]) for i in range(3)] == [1, 0, 1]
    apart = LabelledTexts(pairs, 4, eos=2, apart=True)
    assert spelt(apart[0]["input_ids"]) + spelt(apart[0]["other_input_ids"]) == "abc>xy>"
    batch = PadCollator(pad=0, multiple=4)([apart[i] for i in range(3)])
    assert batch["labels"].tolist() == [1, 0, 1]
    assert batch["input_ids"].shape == batch["other_input_ids"].shape == (3, 4)
    assert batch["attention_mask"].sum(1).tolist() == [4, 3, 1]
    assert batch["other_attention_mask"].sum(1).tolist() == [3, 4, 2]
    with pytest.raises(ValueError, match="leaves no room"):
        LabelledTexts(pairs, 4, bos=1, eos=2)


def test_rounding_does_not_pass_what_a_model_can_read(pairs: ShardSet) -> None:
    apart = LabelledTexts(pairs, 5, eos=2, apart=True)
    longest = max(len(apart[i]["input_ids"]) for i in range(3))
    for most, wanted in ((0, 8), (longest, longest), (7, 7), (8, 8), (9, 8), (1, longest)):
        collate = PadCollator(pad=0, multiple=8, most=most)
        batch, at_once = collate([apart[i] for i in range(3)]), apart.read_rows([0, 1, 2])
        assert at_once is not None
        assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, wanted)
        assert all(torch.equal(batch[name], value) for name, value in collate.join(at_once).items())
    with pytest.raises(ValueError, match="most=-1: 0 for no limit"):
        PadCollator(pad=0, most=-1)


@given(a=st.integers(0, 30), b=st.integers(0, 30), room=st.integers(2, 40))
def test_cutting_takes_from_the_longer(a: int, b: int, room: int) -> None:
    x, y = fit([a, b], room)
    assert x + y == min(a + b, room)
    assert 0 <= x <= a
    assert 0 <= y <= b
    if x < a and y < b:
        assert abs(x - y) <= 1
    assert x == a or x >= y - 1
    assert y == b or y >= x - 1


def test_sequence_pairs_and_left_padding(tmp_path: Path, pairs: ShardSet) -> None:
    shards = prepare(Examples([(texts, None) for texts, _ in PAIRS], ()), "train", ByteEncoder(), tmp_path / "n")
    data = SequencePairs(shards, 6, 5, eos=2)
    batch = PadCollator(pad=0, left=True)([data[0], data[1]])
    assert spelt(batch["input_ids"][0]) == "abcde>"
    assert batch["input_ids"][1].tolist() == [0, 0, 0, *(3 + ord(c) for c in "ab"), 2]
    assert batch["attention_mask"][1].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch["labels"][0].tolist() == [-100, -100, 3 + ord("x"), 3 + ord("y"), 2]
    with pytest.raises(ValueError, match="use SequencePairs"):
        LabelledTexts(shards, 8)
    with pytest.raises(ValueError, match="at least a token and its end"):
        SequencePairs(shards, 1, 5, eos=2)


def test_examples_are_not_running_text(tmp_path: Path, pairs: ShardSet) -> None:
    with pytest.raises(ValueError, match="holds running text"):
        LabelledTexts(shards_of(tmp_path / "t", [[b"abc"]]), 8)
    with pytest.raises(ValueError, match="multiple=0"):
        PadCollator(pad=0, multiple=0)
