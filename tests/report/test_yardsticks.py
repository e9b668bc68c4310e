"""Bits per byte of a model, an n-gram and gzip: of exactly the same bytes."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cosformer.models import CosformerConfig, CosformerForCausalLM
from cosformer.report.yardsticks import held_out_bits
from cosformer.tasks import ByteNgram, gzip_bits_per_byte
from cosformer.training import RunData, load_recipe, open_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Eighty small files, of which a few are held out by the hash of their names."""
    folder = tmp_path_factory.mktemp("text")
    for i in range(80):
        (folder / f"part{i}.py").write_text(f"def function_{i}(x):\n    return x + {i * i}\n\n" * (1 + i % 7))
    recipe = load_recipe("lm-stdlib", f'data.path=["{folder}"]', "data.length=50")
    return open_data(recipe, tmp_path_factory.mktemp("cache"), splits=("test",))


class Even:
    """A model that finds every token as likely as any other."""

    device = torch.device("cpu")

    def __init__(self, vocab: int) -> None:
        self.vocab, self.read = vocab, 0

    def __call__(self, ids: torch.Tensor, *, shift_labels: torch.Tensor, **_: Any) -> SimpleNamespace:
        targets = int((shift_labels >= 0).sum())
        self.read += targets
        return SimpleNamespace(loss=torch.tensor(targets * math.log(self.vocab)))


def test_all_read_the_same_bytes(data: RunData) -> None:
    text = [piece.data for piece in data.source.pieces("test")]  # pyright: ignore[reportAttributeAccessIssue]
    train = b"".join(piece.data for piece in data.source.pieces("train"))  # pyright: ignore[reportAttributeAccessIssue]
    length = sum(len(part) for part in text)
    assert len(text) > 1
    model = Even(256)
    found = held_out_bits(model, data)
    assert found["bytes"] == length
    assert found["text"].startswith("def function_")
    assert model.read == length + len(text)  # the end of each document is predicted too
    bits = found["bits_per_byte"]
    assert bits["this model"] == pytest.approx(8 * model.read / length)
    assert bits["6-gram"] == pytest.approx(ByteNgram(train, order=6).bits_per_byte(text))
    assert bits["gzip -9"] == pytest.approx(gzip_bits_per_byte(text))


def test_a_part_is_a_part_for_all(data: RunData) -> None:
    text = b"".join(piece.data for piece in data.source.pieces("test"))  # pyright: ignore[reportAttributeAccessIssue]
    model = Even(256)
    found = held_out_bits(model, data, most=90)
    assert model.read == 100  # two windows
    assert 90 <= found["bytes"] <= 100
    assert found["bits_per_byte"]["gzip -9"] > gzip_bits_per_byte([text])  # less text to learn from


def test_the_loss_is_that_of_the_model(data: RunData) -> None:
    torch.manual_seed(0)
    config = CosformerConfig(
        vocab_size=data.vocab_size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, horizon=50,
        initializer_range=0.5,
    )  # fmt: skip
    model = CosformerForCausalLM(config).eval()
    found = held_out_bits(model, data, most=50)
    item = data.dataset("test")[0]
    with torch.no_grad():
        logits = model(item["input_ids"][None], use_cache=False).logits[0]
    nats = torch.nn.functional.cross_entropy(logits, item["shift_labels"], reduction="sum")
    assert found["bits_per_byte"]["this model"] == pytest.approx(float(nats) / math.log(2) / found["bytes"], rel=1e-5)


def test_a_broken_model_has_no_bits(data: RunData) -> None:
    class Broken(Even):
        def __call__(self, ids: torch.Tensor, **_: Any) -> SimpleNamespace:
            return SimpleNamespace(loss=torch.tensor(math.nan))

    with pytest.raises(ValueError, match="the model's loss is nan"):
        held_out_bits(Broken(256), data)


def test_other_tokens_are_refused(data: RunData, tmp_path: Path) -> None:
    recipe = data.recipe.with_values(["tokenizer.kind=bpe", "tokenizer.vocab_size=300"])
    with pytest.raises(ValueError, match="told for models of bytes"):
        held_out_bits(
            Even(256), RunData(recipe=recipe, source=data.source, tokenizer=data.tokenizer, shards=data.shards)
        )
