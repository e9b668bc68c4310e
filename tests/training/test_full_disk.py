"""Too little room is told before training; a disk that fills up meanwhile, with the way on."""

import errno
import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from training_data import tiny
from transformers import PreTrainedTokenizerFast

from cosformer.training import Watch, engine, run_folder, train, vocabulary
from cosformer.training.checkpoint import checkpoints

USAGE = namedtuple("USAGE", "total used free")


class Started(Watch):
    started = False

    def starting(self, facts: dict[str, Any]) -> None:
        self.started = True


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = ("train.keep=3", "train.save_every=1", "train.steps=4")
    recipe, watch = tiny("lm-stdlib", tmp_path / "data", *many), Started()
    plain = shutil.disk_usage
    monkeypatch.setattr(
        shutil, "disk_usage", lambda p: plain(p) if "cache" in str(p) else USAGE(1 << 30, 1 << 30, 1000)
    )
    with pytest.raises(OSError, match="3 checkpoints") as error:
        train(recipe, tmp_path / "run", device="cpu", watch=watch)
    assert "1,000 are free" in str(error.value)
    assert not watch.started
    assert not checkpoints(tmp_path / "run")


@pytest.mark.parametrize(
    ("keep", "words"),
    [(1, "a checkpoint of .*: train a smaller model, or"), (5, "5 checkpoints of .*: train a smaller model, or"),
     (20, r"20 checkpoints of .*: --set train\.keep=1, or")],
)  # fmt: skip
def test_what_is_proposed_for_a_small_disk_helps(
    keep: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1000 if keep < 20 else 4 * 1000 * 8  # bytes; a thousand parameters
    monkeypatch.setattr(shutil, "disk_usage", lambda _: USAGE(1 << 30, 1 << 30, free))
    with pytest.raises(OSError, match=f"{words} name a folder on a larger disk with --out"):
        run_folder.check_space(tmp_path, 1000, keep)


def test_the_estimate_covers_what_is_written(tmp_path: Path) -> None:
    train(tiny("lm-stdlib", tmp_path / "data"), tmp_path / "run", device="cpu")
    (only,) = checkpoints(tmp_path / "run")
    written = sum(path.stat().st_size for path in only.iterdir())
    parameters = json.loads((tmp_path / "run" / "run.json").read_text())["parameters"]
    assert 12 * parameters < written < 12 * parameters + 60_000  # headers, config, the states of two counters
    run_folder.check_space(tmp_path, parameters, 2)


def test_room_is_for_checkpoints_that_will_be(tmp_path: Path) -> None:
    everything = ("train.keep=1_000_000_000", "train.save_every=1")  # of two steps
    train(tiny("lm-stdlib", tmp_path / "data", *everything), tmp_path / "run", device="cpu")
    assert len(checkpoints(tmp_path / "run")) == 2


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("file write failed"),
        Exception("No space left on device (os error 28)"),  # of the package `tokenizers`
    ],
)
def test_a_disk_that_fills_up(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny("lm-stdlib", tmp_path / "data", "train.steps=4", "train.save_every=2")
    plain, run = engine.RunTrainer._write_usable, tmp_path / "run"

    def write(self: Any, folder: Path, state: Any) -> None:
        if ".checkpoint-4" in folder.name:
            raise error
        plain(self, folder, state)

    with monkeypatch.context() as patch:
        patch.setattr(engine.RunTrainer, "_write_usable", write)
        if isinstance(error, RuntimeError):  # torch's words; it may be of something else
            with pytest.raises(RuntimeError, match="file write failed"):
                train(recipe, tmp_path / "other", device="cpu")
            patch.setattr(run_folder, "NO_ROOM", 1 << 60)
        with pytest.raises(OSError, match=rf"no space is left.*checkpoint-2 is whole.* --out {run} --resume"):
            train(recipe, run, device="cpu")
    assert train(None, run, resume=True, device="cpu").steps == 4


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_a_disk_that_fills_up_while_a_vocabulary_is_written(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one is written by this process, the other by the one that learned it."""
    full = "No space left on device (os error 28)"

    def save(*_: Any, **__: Any) -> None:
        raise Exception(full)

    if kind == "word":
        monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", save)
    else:
        learner = vocabulary.LEARNER.read_text().replace("learn([", f"raise Exception({full!r}); learn([")
        (tmp_path / "learner.py").write_text(learner)
        monkeypatch.setattr(vocabulary, "LEARNER", tmp_path / "learner.py")
    recipe = tiny("lm-text", tmp_path / "data", f"tokenizer.kind={kind}", "tokenizer.vocab_size=270")
    with pytest.raises(OSError, match=r"data-cache: no space is left .* with --cache"):
        train(recipe, tmp_path / "run", device="cpu")


def test_another_error_of_tokenizers_is_not_of_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="os error 13"), run_folder.full_disk_told(tmp_path):
        raise Exception("Permission denied (os error 13)")
