"""Text a model writes while it is trained: what cannot be written is refused before, everything else is written."""

from pathlib import Path

import pytest
from training_data import tiny

from cosformer.training import BadRecipe, read_metrics, samples, train

PROMPTS = 'sample.prompts=["", "the cat"]'


@pytest.mark.parametrize(
    "more", [("model.attention=reformer",), ("tokenizer.kind=word", "tokenizer.vocab_size=0")], ids=str
)
def test_written_at_each_evaluation(more: tuple[str, ...], tmp_path: Path) -> None:
    """Reformer has no cache to go on from, words no <bos>: both ended the run at its first evaluation."""
    train(tiny("lm-text", tmp_path / "data", PROMPTS, *more), tmp_path / "run", device="cpu")
    written = [line["prompt"] for line in read_metrics(tmp_path / "run") if line["kind"] == "sample"]
    assert written == ["", "the cat"]


def test_what_has_no_beginning_is_refused_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object, **__: object) -> list[int]:
        raise ValueError("no token to begin with")

    monkeypatch.setattr(samples, "prompt_ids", without)
    with pytest.raises(BadRecipe, match=r"sample.prompts=.*no token to begin with"):
        train(tiny("lm-text", tmp_path / "data", PROMPTS), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "recipe.toml").exists()
