"""pipeline(): text generation, filling masks, classification; the same as the model asked directly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import VOCAB, small_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, pipeline

from cosformer.models import (
    CosformerForCausalLM,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """w0 … w60, a word each; w7 pads, w8 masks, w9 ends."""
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="w7", mask_token="w8", unk_token="w0", eos_token="w9", padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def saved(cls: type, folder: Path, **options: Any) -> Any:
    model = small_model(cls, **options)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model


TEXTS = ["w11 w23 w5", "w4 w8 w50 w31 w2 w2 w17"]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_text_generation(tmp_path: Path, batch_size: int) -> None:
    model = saved(CosformerForCausalLM, tmp_path)
    pipe = pipeline("text-generation", model=str(tmp_path), device="cpu")
    options = {"max_new_tokens": 6, "do_sample": False}
    got = pipe(TEXTS, return_full_text=False, batch_size=batch_size, **options)
    for text, answer in zip(TEXTS, got, strict=True):
        ids = torch.tensor([[int(word[1:]) for word in text.split()]])
        new = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1] :]
        assert answer[0]["generated_text"].split() == [f"w{i}" for i in new.tolist()]


def test_fill_mask(tmp_path: Path) -> None:
    model = saved(CosformerForMaskedLM, tmp_path, causal=False)
    got = pipeline("fill-mask", model=str(tmp_path), device="cpu")("w11 w23 w8 w5", top_k=3)
    best = model(torch.tensor([[11, 23, 8, 5]])).logits[0, 2].topk(3).indices
    assert [answer["token"] for answer in got] == best.tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_text_classification(tmp_path: Path, side: str) -> None:
    names = {"id2label": {0: "bad", 1: "fair", 2: "good"}}
    model = saved(CosformerForSequenceClassification, tmp_path, causal=False, **names)
    pipe = pipeline("text-classification", model=str(tmp_path), device="cpu")
    pipe.tokenizer.padding_side = side  # pyright: ignore[reportOptionalMemberAccess]
    got = pipe(TEXTS, batch_size=2)
    for text, answer in zip(TEXTS, got, strict=True):
        logits = model(torch.tensor([[int(word[1:]) for word in text.split()]])).logits[0]
        assert answer["label"] == names["id2label"][int(logits.argmax())]
        assert answer["score"] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-4)


def test_token_classification(tmp_path: Path) -> None:
    model = saved(CosformerForTokenClassification, tmp_path, causal=False, id2label={0: "A", 1: "B"})
    got = pipeline("token-classification", model=str(tmp_path), device="cpu", ignore_labels=[])(TEXTS[0])
    best = model(torch.tensor([[11, 23, 5]])).logits[0].argmax(-1)
    assert [answer["entity"] for answer in got] == [{0: "A", 1: "B"}[int(i)] for i in best]
