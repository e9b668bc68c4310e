"""Metrics against values worked out by hand or by the definition."""

import gzip
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasks.tasks_data import shards_of

from cosformer.tasks import ByteNgram, Confusion, LossSum, MissingPackage, bleu, gzip_bits_per_byte, wilson


def test_losses_by_hand(tmp_path: Path) -> None:
    loss = LossSum(nats=math.log(2) * 6, tokens=2) + LossSum(nats=math.log(2) * 2, tokens=2)
    assert loss.perplexity == pytest.approx(4)
    assert loss.bits_per_byte(16) == pytest.approx(0.5)
    assert loss.word_perplexity(2) == pytest.approx(16)
    assert LossSum(nats=1e9, tokens=1).perplexity == math.inf
    manifest = shards_of(tmp_path, [[b"ab\n"]], eos=2).manifest
    found = LossSum(nats=math.log(2) * 12, tokens=4).of_text(manifest)  # the mark is predicted, and is no byte
    assert found == {
        k: pytest.approx(v) for k, v in {"perplexity": 8, "bits_per_byte": 4, "word_perplexity": 64}.items()
    }
    assert LossSum(nats=math.log(2) * 9, tokens=3).of_text(manifest)["bits_per_byte"] == pytest.approx(4)
    unspelt = replace(manifest, unknown=2, unknown_written=1)  # neither bits nor words of what <unk> stands for
    assert LossSum(nats=math.log(2) * 12, tokens=4).of_text(unspelt) == {
        "perplexity": pytest.approx(8), "unknown_share": 0.5,
    }  # fmt: skip
    with pytest.raises(ValueError, match="2 tokens were predicted of 4"):
        LossSum(nats=1, tokens=2).of_text(manifest)
    with pytest.raises(ValueError, match="nothing to average"):
        _ = LossSum().perplexity


def test_wilson_by_known_values() -> None:
    assert wilson(8, 10) == (pytest.approx(0.4901625, abs=1e-6), pytest.approx(0.9433178, abs=1e-6))
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775328, abs=1e-6))
    assert wilson(10, 10)[1] == 1.0
    for right, total in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="right of"):
            wilson(right, total)


@given(total=st.integers(1, 10**6), share=st.floats(0, 1))
def test_wilson_solves_its_equation(total: int, share: float) -> None:
    right = round(total * share)
    z = 1.959963984540054
    for bound in wilson(right, total):
        if 0 < bound < 1:
            assert (right / total - bound) ** 2 == pytest.approx(
                z * z * bound * (1 - bound) / total, rel=1e-6, abs=1e-12
            )


def test_confusion_by_hand() -> None:
    table = Confusion(("no", "yes"))
    table.add([1, 1, 0, 0, 1], [1, 0, 0, 1, 1])
    table.add([0], [0])
    report = table.report()
    assert report["accuracy"] == pytest.approx(4 / 6)
    assert report["f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert report["accuracy_low"] < report["accuracy"] < report["accuracy_high"]
    assert Confusion(("no", "yes")).f1() == 0.0
    three = Confusion(("a", "b", "c"))
    three.add([0, 1, 2], [0, 1, 1])
    assert "f1" not in three.report()
    with pytest.raises(ValueError, match="labels from 0 to 3: there are 3 classes"):
        three.add([0, 3], [0, 1])
    with pytest.raises(ValueError, match="one for each"):
        three.add([0], [0, 1])


def test_bleu(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("sacrebleu", reason="BLEU: pip install cosformer[data]")
    said, true = ["A dog runs in the snow .", "Two men ."], ["A dog is running in the snow .", "Two men sit ."]
    found = bleu(said, true)
    assert found["bleu"] == pytest.approx(library.corpus_bleu(said, [true]).score)
    assert "tok:13a" in str(found["signature"])
    assert bleu(true, true)["bleu"] == pytest.approx(100)
    with pytest.raises(ValueError, match="1 translations of 2"):
        bleu(["a"], true)
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    with pytest.raises(MissingPackage, match="BLEU needs sacrebleu"):
        bleu(said, true)


def test_gzip_is_gzip() -> None:
    text = b"a text that repeats itself, a text that repeats itself\n" * 20
    ours = gzip_bits_per_byte([text[:100], text[100:]])
    assert ours == pytest.approx(8 * len(gzip.compress(text, 9)) / len(text), rel=0.01)
    with pytest.raises(ValueError, match="empty"):
        gzip_bits_per_byte([b""])


def by_definition(train: bytes, context: bytes, byte: int) -> float:
    """The recursion as it is written, by counting in the text."""
    shorter = 1 / 256 if not context else by_definition(train, context[1:], byte)
    after = [
        train[i + len(context)] for i in range(len(train) - len(context)) if train[i : i + len(context)] == context
    ]
    return (after.count(byte) + len(set(after)) * shorter) / (len(after) + len(set(after))) if after else shorter


@given(train=st.binary(min_size=1, max_size=12), text=st.binary(max_size=8), order=st.integers(1, 8))
def test_ngram_is_its_definition(train: bytes, text: bytes, order: int) -> None:
    text += train[:4]
    found = ByteNgram(train, order=order).probabilities(text)
    exact = [by_definition(train, text[max(0, i - order + 1) : i], text[i]) for i in range(len(text))]
    assert found == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("order", [1, 3, 8])
def test_ngram_sums_to_one(order: int) -> None:
    model = ByteNgram(b"abracadabra, said the magician", order=order)
    for context in (b"abra", b"zzz", b"", b"a"):
        total = sum(model.probabilities(context + bytes([c]))[-1] for c in range(256))
        assert total == pytest.approx(1, abs=1e-12)


def test_ngram_learns_and_refuses() -> None:
    text = b"the cat sat on the mat and the dog sat on the cat. " * 40
    orders = [ByteNgram(text, order=n).bits_per_byte([text]) for n in (1, 2, 4, 6)]
    assert orders == sorted(orders, reverse=True)
    assert orders[0] == pytest.approx(entropy(text), abs=0.1)
    assert ByteNgram(text).bits_per_byte([bytes(range(128, 256))]) > 8
    for wrong, options, words in ((b"", {}, "empty"), (b"a", {"order": 9}, "order=9: 1 to 8")):
        with pytest.raises(ValueError, match=words):
            ByteNgram(wrong, **options)


def entropy(text: bytes) -> float:
    share = np.bincount(np.frombuffer(text, np.uint8)) / len(text)
    return float(-(share[share > 0] * np.log2(share[share > 0])).sum())
