"""Self-pretraining: two runs by one call, each resumable, on the training inputs alone."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest
from training_data import tiny

from cosformer.training import BadRecipe, Watch, load_recipe, read_metrics, train, train_pretrained
from cosformer.training.pretraining import pretrain_folder, self_pretraining
from cosformer.training.run_folder import RunSummary


class StopAt(Watch):
    """Ctrl-C after a step of a task."""

    def __init__(self, task: str, step: int) -> None:
        self.task, self.step, self.now = task, step, ""

    def starting(self, facts: dict[str, Any]) -> None:
        self.now = facts["task"]

    def line(self, line: dict[str, Any]) -> None:
        if (self.now, line["kind"], line["step"]) == (self.task, "train", self.step):
            signal.raise_signal(signal.SIGINT)


def listops(folder: Path) -> Any:
    return tiny("lra-listops", folder, "pretrain.steps=4", "train.steps=4", "eval.every=4")


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(run) if line["kind"] == "train"]


def test_interrupted_in_either_run_it_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, whole, out = listops(tmp_path / "data"), tmp_path / "whole", tmp_path / "out"
    train_pretrained(recipe, whole, device="cpu")
    first = train_pretrained(recipe, out, device="cpu", watch=StopAt("mlm", 2))
    assert (first.interrupted, first.steps < 4, first.task) == (True, True, "mlm")
    assert not out.exists()
    second = train_pretrained(recipe, out, resume=True, device="cpu", watch=StopAt("classify", 2))
    assert (second.interrupted, second.steps < 4, second.task) == (True, True, "classify")
    monkeypatch.chdir(tmp_path)  # the model it starts from is found from anywhere
    third = train_pretrained(recipe, Path("out"), resume=True, device="cpu")
    assert (third.interrupted, third.steps) == (False, 4)
    for end in ("", "-pretrain"):
        assert losses(tmp_path / f"out{end}") == losses(tmp_path / f"whole{end}")


def test_only_training_inputs_are_read_and_both_runs_read_the_same(tmp_path: Path) -> None:
    chance = random.Random(0)
    rows = [f"{word} {chance.random()},{word}" for word in ("good", "bad") * 100]
    (tmp_path / "own.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    recipe = tiny("classify-text", tmp_path / "data", "pretrain.steps=2", f'data.path=["{tmp_path / "own.csv"}"]')
    after = train_pretrained(recipe, tmp_path / "run", device="cpu")
    before = RunSummary.read(pretrain_folder(tmp_path / "run"))
    assert before.data["splits"].keys() == {"train", "valid"}
    assert before.data["splits"] == after.data["splits"]
    (prepared,) = (tmp_path / "data-cache").glob("examples-*")  # made once for both
    assert sorted(path.name for path in prepared.iterdir()) == ["train", "valid"]


def test_a_run_without_it_is_not_gone_on_with(tmp_path: Path) -> None:
    recipe = listops(tmp_path / "data")
    train(recipe, tmp_path / "run", device="cpu")
    with pytest.raises(ValueError, match="run holds a run without pre-training"):
        train_pretrained(recipe, tmp_path / "run", resume=True, device="cpu")
    assert not pretrain_folder(tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("classify-qqp", ("train.batch=70", "pretrain.batch=4"), "60 examples make no batch of 70"),
        ("classify-sst2", ("data.apart=true",), "one text per example"),
        ("classify-qqp", ("data.length=3", "model.pooling=first"), "no room for text"),
    ],
)
def test_what_would_refuse_the_second_run_refuses_the_first(
    name: str, more: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    recipe = tiny(name, tmp_path / "data", "pretrain.steps=2", "tokenizer.kind=bytes", *more)
    with pytest.raises(ValueError, match=message):
        train_pretrained(recipe, tmp_path / "run", device="cpu")
    assert not (pretrain_folder(tmp_path / "run") / "recipe.toml").exists()


def test_the_first_run_lies_beside_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert pretrain_folder(Path("run")) == Path("run-pretrain")
    assert pretrain_folder(Path(".")) == tmp_path / "here-pretrain"


def test_a_data_set_of_a_hub_is_read_by_its_own_column() -> None:
    recipe = load_recipe("classify-text", "data.source=hub", 'data.columns=["review"]', "pretrain.steps=2")
    assert self_pretraining(recipe).data.column == "review"
    with pytest.raises(BadRecipe, match="reads one column"):
        self_pretraining(recipe.with_values(['data.columns=["a", "b"]']))


def test_a_model_to_start_from_that_is_no_folder(tmp_path: Path) -> None:
    recipe = tiny("lra-listops", tmp_path / "data", f"model.init={tmp_path / 'gone'}")
    with pytest.raises(BadRecipe, match="gone' is no folder that is there"):
        train(recipe, tmp_path / "run", device="cpu")
