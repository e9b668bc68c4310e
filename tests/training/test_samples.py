"""Text a model writes while it is trained: what cannot be written is refused before, everything else is written."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from training_data import tiny
from transformers import PreTrainedTokenizerFast

from cosformer.models import byte_tokenizer
from cosformer.models.tokenizers import train_tokenizer
from cosformer.tasks import word_tokenizer
from cosformer.tasks.pieces import Piece, Place
from cosformer.training import BadRecipe, Watch, read_metrics, samples, train
from cosformer.training.recorder import Recorder

WORDS = ("tokenizer.kind=word", "tokenizer.vocab_size=0", 'sample.prompts=["the cat"]')
PROMPTS = 'sample.prompts=["", "the cat"]'


@pytest.mark.parametrize(
    "more", [("model.attention=reformer",), ("tokenizer.kind=word", "tokenizer.vocab_size=0")], ids=str
)
def test_written_at_each_evaluation(more: tuple[str, ...], tmp_path: Path) -> None:
    """Reformer has no cache to go on from, words no <bos>: both ended the run at its first evaluation."""
    train(tiny("lm-text", tmp_path / "data", PROMPTS, *more), tmp_path / "run", device="cpu")
    written = [line["prompt"] for line in read_metrics(tmp_path / "run") if line["kind"] == "sample"]
    assert written == ["", "the cat"]


def test_a_space_stands_where_the_tokenizer_puts_one(tmp_path: Path) -> None:
    """Words were glued to the prompt: "The gameprophète"."""
    inner = word_tokenizer([Piece(b"the cat sees", Place("x", 1))])
    words = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token="<unk>", pad_token="<pad>")
    (tmp_path / "text.txt").write_text("the cat sees the dog\n" * 100)
    pairs = train_tokenizer([tmp_path / "text.txt"], 264)
    for tokenizer, prompt, text, wanted in (
        (words, "the cat", "sees the", " "), (words, "the cat ", "sees", ""), (words, "", "sees", ""),
        (words, "the cat", "", ""), (words, "the dog", "sees", " "), (byte_tokenizer(), "the c", "at", ""),
        (pairs, "the", "cat", ""), (pairs, "the", " cat", ""),
    ):  # fmt: skip
        assert samples.space_between(tokenizer, prompt, text) == wanted, (prompt, text)
    train(tiny("lm-text", tmp_path / "data", *WORDS), tmp_path / "run", device="cpu")
    (line,) = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "sample"]
    assert line["text"] == "" or line["text"][0] == " " != line["text"][1]


def test_what_has_no_beginning_is_refused_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object, **__: object) -> list[int]:
        raise ValueError("no token to begin with")

    monkeypatch.setattr(samples, "prompt_ids", without)
    with pytest.raises(BadRecipe, match=r"sample.prompts=.*no token to begin with"):
        train(tiny("lm-text", tmp_path / "data", PROMPTS), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_tensorboard_tells_what_was_given_from_what_was_written(tmp_path: Path) -> None:
    """A translation was glued to its source, and Markdown shows no bold text that begins with a space."""
    shown: list[str] = []
    recorder = Recorder(tmp_path, step=0, writes=True, watch=Watch())
    recorder.board = SimpleNamespace(add_text=lambda _, text, __: shown.append(text), close=lambda: None)
    recorder.write("sample", 1, prompt="two\nlines.", text=" a dog.")
    recorder.close()
    assert shown == ["> two\n> lines.\n\n a dog."]
