"""The byte tokenizer and byte-pair encodings learned from text: exact both ways, real tokenizers of transformers."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small_model
from transformers import AutoTokenizer, PreTrainedTokenizerFast, pipeline

from cosformer.models import CosformerForCausalLM
from cosformer.models.tokenizers import byte_tokenizer, text_files, train_tokenizer

BYTES = byte_tokenizer()
TEXTS = [
    "",
    "plain",
    " spaces  kept ",
    "tab\tnew\nline\r\n\x00",
    "héllo wörld 🙂 中文",
    "<pad> <bos> <eos> n't .",
    "\ufeffé",
]
CORPUS = "the quick brown fox jumps over the lazy dog; thereafter the other fox quickly rests. <eos> " * 20


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    file = tmp_path_factory.mktemp("text") / "corpus.txt"
    file.write_text(CORPUS)
    return train_tokenizer([file], 300)


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_an_id_is_three_and_the_byte(text: str) -> None:
    assert BYTES(text).input_ids == [3 + byte for byte in text.encode()]
    assert BYTES.decode(BYTES(text).input_ids) == text


@settings(deadline=None, max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text: str) -> None:
    ids = BYTES(text).input_ids
    assert ids == [3 + byte for byte in text.encode()]
    assert BYTES.decode(ids, skip_special_tokens=True) == text


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    raw = b"ok \xff\xfe \xe2\x82 end"
    assert BYTES.decode([3 + byte for byte in raw]) == raw.decode(errors="replace")


def test_size_and_specials() -> None:
    assert len(BYTES) == BYTES.vocab_size == 259
    assert (BYTES.pad_token_id, BYTES.bos_token_id, BYTES.eos_token_id) == (0, 1, 2)
    assert BYTES.decode([1, 3 + 65, 2, 0], skip_special_tokens=True) == "A"
    assert BYTES.decode([1, 3 + 65, 2]) == "<bos>A<eos>"


def test_padding_is_on_the_left() -> None:
    batch = BYTES(["abc", "a"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [[100, 101, 102], [0, 0, 100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert set(batch) == {"input_ids", "attention_mask"}
    right = byte_tokenizer(padding_side="right")(["abc", "a"], padding=True)
    assert right["input_ids"][1] == [100, 0, 0]


def test_saved_with_the_model_it_is_loaded_with_it(tmp_path: Path) -> None:
    model = small_model(CosformerForCausalLM, vocab_size=259, pad_token_id=0)
    model.save_pretrained(tmp_path)
    byte_tokenizer(model_max_length=model.config.horizon).save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(again, PreTrainedTokenizerFast)
    assert again.model_max_length == model.config.horizon
    assert again.padding_side == "left"
    for text in TEXTS:
        assert again(text).input_ids == BYTES(text).input_ids
        assert again.decode(again(text).input_ids) == text
    pipe = pipeline("text-generation", model=str(tmp_path), device="cpu")
    (answer,) = pipe("héllo", max_new_tokens=5, do_sample=False, return_full_text=False)
    ids = torch.tensor([BYTES("héllo").input_ids])
    new = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
    assert answer["generated_text"] == BYTES.decode(new, skip_special_tokens=True)


# Learned


def test_what_was_learned_has_the_size_asked_for_and_the_ids_of_bytes(learned: PreTrainedTokenizerFast) -> None:
    assert len(learned) == 300
    assert (learned.pad_token_id, learned.bos_token_id, learned.eos_token_id) == (0, 1, 2)
    assert learned.convert_ids_to_tokens(list(range(259))) == BYTES.convert_ids_to_tokens(list(range(259)))
    ids = learned(CORPUS).input_ids
    assert len(ids) < len(CORPUS.encode()) / 2
    assert max(ids) == 299
    assert learned.decode(ids) == CORPUS


@settings(deadline=None, max_examples=100)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_learned_any_text_comes_back(learned: PreTrainedTokenizerFast, text: str) -> None:
    assert learned.decode(learned(text).input_ids, skip_special_tokens=True) == text


def test_learned_and_loaded(learned: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    learned.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in (CORPUS, *TEXTS):
        assert again(text).input_ids == learned(text).input_ids
        assert again.decode(again(text).input_ids) == text


def test_the_same_text_gives_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(CORPUS)
    one, two = (train_tokenizer([tmp_path / "a.txt"], 290).get_vocab() for _ in range(2))
    assert one == two


def test_a_line_longer_than_a_piece_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters of several bytes may lie across the cut."""
    import cosformer.models.tokenizers as module

    monkeypatch.setattr(module, "PIECE", 7)
    (tmp_path / "a.txt").write_text("中文é🙂" * 50, encoding="utf-8")
    seen: list[int] = []
    lines = module._Lines([tmp_path / "a.txt"], seen.append)
    assert "".join(lines) == "中文é🙂" * 50
    assert sum(seen) == (tmp_path / "a.txt").stat().st_size


def test_files_below_folders_are_found(tmp_path: Path) -> None:
    for name in ("b/x.txt", "b/a/y.md", "b/.git/z", "b/.hidden", "c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    assert text_files([tmp_path / "c.txt", tmp_path / "b"]) == [tmp_path / n for n in ("c.txt", "b/a/y.md", "b/x.txt")]


def test_refusals(tmp_path: Path) -> None:
    empty, binary, short = tmp_path / "empty.txt", tmp_path / "binary", tmp_path / "short.txt"
    empty.write_text("")
    binary.write_bytes(b"abc \xff\xfe")
    short.write_text("ab ab")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match=r"missing\.txt is not there"):
        text_files([tmp_path / "missing.txt"])
    with pytest.raises(FileNotFoundError, match="folder holds no files"):
        text_files([tmp_path / "folder"])
    with pytest.raises(ValueError, match="the text is empty"):
        train_tokenizer([empty], 300)
    with pytest.raises(ValueError, match="binary is not UTF-8 text"):
        train_tokenizer([binary], 300)
    with pytest.raises(ValueError, match=r"vocab_size=300, but this text gives only 260 tokens .* at most that many"):
        train_tokenizer([short], 300)
    with pytest.raises(ValueError, match="vocab_size=258: 3 special tokens and 256 bytes come first"):
        train_tokenizer([short], 258)
