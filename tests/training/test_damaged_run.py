"""What was damaged after it was written is named, with the way out."""

from pathlib import Path

import pytest
from training_data import tiny

from cosformer.training import Watch, train
from cosformer.training import checkpoint as saved


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(tmp_path: Path) -> None:
    recipe, run = tiny("lra-listops", tmp_path / "data", "train.save_every=1", "train.keep=2"), tmp_path / "run"
    train(recipe, run, device="cpu")
    (run / "run.json").unlink()  # as if it had been killed just before the end
    for name in ("model.safetensors", saved.OPTIMIZER, saved.PROGRESS):
        whole = (run / "checkpoint-2" / name).read_bytes()
        (run / "checkpoint-2" / name).write_bytes(whole[:100])
        if name == saved.OPTIMIZER:  # read only where steps are left
            with pytest.raises(ValueError, match="checkpoint-2 is damaged"):
                saved.read_optimizer(run / "checkpoint-2")
        else:
            with pytest.raises(
                ValueError, match=r"checkpoint-2 is damaged \(\w+: .*\): remove it, and --resume goes on"
            ):
                train(recipe, run, resume=True, device="cpu")
        (run / "checkpoint-2" / name).write_bytes(whole)
    for path in (run / "checkpoint-2").iterdir():
        path.unlink()
    (run / "checkpoint-2").rmdir()
    assert train(recipe, run, resume=True, device="cpu").steps == 2


class Heard(Watch):
    def __init__(self) -> None:
        self.words: list[str] = []

    def said(self, words: str) -> None:
        self.words.append(words)


def test_a_shard_that_was_cut_is_told_and_made_again(tmp_path: Path) -> None:
    recipe, watch = tiny("lm-text", tmp_path / "data"), Heard()
    before = train(recipe, tmp_path / "before", device="cpu")
    (shard,) = (tmp_path / "data-cache").glob("*/train/00000.shard")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    after = train(recipe, tmp_path / "after", device="cpu", watch=watch)
    assert shard.read_bytes() == whole
    assert after.metrics == before.metrics
    assert [words for words in watch.words if str(shard) in words and "is done now" in words]


def test_a_run_killed_while_its_recipe_was_written_begins_anew(tmp_path: Path) -> None:
    recipe, run = tiny("lra-listops", tmp_path / "data"), tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml.123.tmp").write_text("task = ")
    with pytest.raises(FileExistsError, match="it holds no run"):
        train(recipe, run, device="cpu")
    assert train(recipe, run, resume=True, device="cpu").steps == 2
    assert not list(run.glob("*.tmp"))
