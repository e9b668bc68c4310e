"""What is wrong with a folder, a disk or a recipe is said before training starts."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from training_data import text, tiny

from cosformer.models.writing import load_model
from cosformer.tasks import SourceMissing
from cosformer.training import BadRecipe, Watch, engine, load_recipe, open_data, read_metrics, run_folder, train
from cosformer.training.checkpoint import checkpoints
from cosformer.training.making import make_model
from cosformer.training.recipe import read_recipe_file
from cosformer.training.recorder import cut_after


class Noted(Watch):
    def __init__(self) -> None:
        self.words: list[str] = []
        self.started = False

    def said(self, words: str) -> None:
        self.words.append(words)

    def starting(self, facts: dict[str, Any]) -> None:
        self.started = True


def test_a_folder_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter.txt").write_text("mine")
    watch, recipe = Noted(), tiny("lm-stdlib", tmp_path / "data")
    for resume in (False, True):
        with pytest.raises(FileExistsError, match="it holds no run; name another folder"):
            train(recipe, tmp_path / "run", device="cpu", watch=watch, resume=resume)
    assert not watch.started
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["letter.txt"]
    (tmp_path / "run" / "recipe.toml").write_text(recipe.toml())
    with pytest.raises(FileExistsError, match="--resume goes on"):
        train(recipe, tmp_path / "run", device="cpu", watch=watch)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny("lm-stdlib", tmp_path / "data")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="cannot be written"):
        train(recipe, tmp_path / "file" / "run", device="cpu")


def test_another_process_trains_there(tmp_path: Path) -> None:
    """It would have lost the checkpoint that it was about to write."""
    pytest.importorskip("fcntl")
    recipe, run = tiny("lm-stdlib", tmp_path / "data"), tmp_path / "run"
    writing = run / ".checkpoint-2.1.new.partial"
    writing.mkdir(parents=True)
    (run / "recipe.toml").write_text(recipe.toml())
    with run_folder.alone_in(run):
        for resume in (False, True):
            with pytest.raises(ValueError, match=r"run: another process is training in this folder.* with --out"):
                train(recipe, run, device="cpu", resume=resume)
        assert writing.is_dir()
    assert train(recipe, run, device="cpu", resume=True).steps == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # torch's threads; the child only waits
def test_a_killed_process_leaves_no_lock_to_its_children(tmp_path: Path) -> None:
    """As its readers of data, which are forked and end a little later."""
    told, tell = os.pipe()
    with run_folder.alone_in(tmp_path):
        child = os.fork()
        if child == 0:
            os.write(tell, b"x")
            signal.pause()
        os.read(told, 1)
    try:
        with run_folder.alone_in(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)


def test_data_that_is_absent(tmp_path: Path) -> None:
    with pytest.raises(SourceMissing, match="--data"):
        train(load_recipe("lm-wikitext2"), tmp_path / "run", device="cpu")
    with pytest.raises(SourceMissing, match="--data"):
        train(load_recipe("lm-text"), tmp_path / "run2", device="cpu")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["data.length=128"], "model.horizon=128"),
        (["model.mlp=relish"], "model: mlp='relish' is unknown"),
        (["train.batch=100_000"], "make no batch"),
        (["data.source=sst2", "data.path=[]"], "--data"),
        (["task=classify"], "running text|labelled"),
        (["data.source=elsewhere"], "is unknown: use one of stdlib, "),
        (["data.source=sst"], "is unknown: did you mean sst2\\? use one of stdlib, "),
        (["sample.tokens=100"], "horizon is 64: set fewer sample.tokens"),
    ],
    ids=str,
)
def test_recipes_that_make_no_run(more: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises((BadRecipe, ValueError, SourceMissing), match=message):
        train(tiny("lm-stdlib", tmp_path / "data", *more), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "recipe.toml").exists()  # else the same command, set right, would be refused


@pytest.mark.parametrize("changed", ["train", "valid"])
def test_resume_refuses_other_data(changed: str, tmp_path: Path) -> None:
    """As long as before, so that nothing else tells them apart."""
    files = {name: tmp_path / f"{name}.txt" for name in ("train", "valid")}
    for seed, path in enumerate(files.values()):
        path.write_text(text(seed))
    own = [f'data.path="{files["train"]}"', f'data.valid_path="{files["valid"]}"']
    recipe = tiny("lm-text", tmp_path / "data", *own, "train.steps=4", "train.save_every=2")
    train(recipe, tmp_path / "run", device="cpu")
    (tmp_path / "run" / "run.json").unlink()
    before = files[changed].read_text()
    files[changed].write_text(before.upper())
    with pytest.raises(ValueError, match=rf"the text of the split '{changed}' is not the one this run began with"):
        train(None, tmp_path / "run", resume=True, device="cpu")
    files[changed].write_text(before)
    (tmp_path / "other.txt").write_text(text(7))
    elsewhere = recipe.with_values([f'data.path="{tmp_path / "other.txt"}"'])
    with pytest.raises(ValueError, match="the text of the split 'train' is not the one"):
        train(elsewhere, tmp_path / "run", resume=True, device="cpu")
    assert train(None, tmp_path / "run", resume=True, device="cpu").steps == 4  # a refusal leaves it as it was


def test_a_checkpoint_that_does_not_know_its_data_goes_on(tmp_path: Path) -> None:
    """Of an earlier version."""
    recipe = tiny("lm-stdlib", tmp_path / "data", "train.steps=4", "train.save_every=2")
    train(recipe, tmp_path / "run", device="cpu")
    (tmp_path / "run" / "run.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    path = tmp_path / "run" / "checkpoint-2" / "progress.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "data"}))
    assert train(None, tmp_path / "run", resume=True, device="cpu").steps == 4


def test_a_run_goes_on_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").write_text(text(0))
    monkeypatch.chdir(tmp_path)
    recipe = tiny("lm-text", tmp_path / "data", "data.path=mine.txt", "train.steps=4", "train.save_every=2")
    train(recipe, "run", device="cpu")
    (tmp_path / "run" / "run.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert train(None, tmp_path / "run", resume=True, device="cpu").steps == 4
    again = read_recipe_file(tmp_path / "run" / "recipe.toml")
    assert again.data.path == (str(tmp_path / "mine.txt"),)


def test_what_of_model_init_overrules_the_recipe_is_said(tmp_path: Path) -> None:
    watch, data = Noted(), tmp_path / "data"
    train(tiny("mlm-wikitext2", data), tmp_path / "mlm", device="cpu")
    init = f'model.init="{tmp_path / "mlm"}"'
    recipe = tiny("classify-sst2", tmp_path / "sst2", init, "model.hidden_size=64", "model.hidden_dropout=0.5")
    train(recipe, tmp_path / "run", device="cpu", watch=watch)
    (line,) = [words for words in watch.words if "model.init" in words]
    assert "hidden_size=16 (recipe: 64)" in line
    assert "hidden_dropout" not in line  # the recipe's own
    longer = recipe.with_values(["data.length=128", "model.horizon=128"])
    with pytest.raises(BadRecipe, match=r"horizon=64, for which it was trained: use data\.length=64 or less"):
        train(longer, tmp_path / "longer", device="cpu")


def test_the_tokenizer_of_model_init_is_told_and_recorded(tmp_path: Path) -> None:
    """The recipe's would have been written down, and never been used."""
    train(tiny("mlm-wikitext2", tmp_path / "data"), tmp_path / "mlm", device="cpu")
    init = f'model.init="{tmp_path / "mlm"}"'
    for name, asked, told in (
        ("same", "tokenizer.vocab_size=270", ""),
        ("bytes", "tokenizer.kind=bytes", "of 270 tokens (recipe: kind=bytes)"),
        ("other", f'tokenizer={{kind="path",path="{tmp_path / "data"}"}}', f"kind=path, path={tmp_path / 'data'})"),
        ("larger", "tokenizer.vocab_size=300", "of 270 tokens (recipe: kind=bpe, vocab_size=300)"),
    ):
        watch, run = Noted(), tmp_path / name
        recipe = tiny("classify-sst2", tmp_path / "sst2", init, asked)
        train(recipe, run, device="cpu", watch=watch)
        words = [words for words in watch.words if "the tokenizer is that of model.init" in words]
        assert len(words) == bool(told)
        assert told in "".join(words)
        stored = read_recipe_file(run / "recipe.toml").tokenizer
        assert (stored.kind, stored.path, stored.vocab_size) == ("path", str(tmp_path / "mlm"), 270)
        (run / "run.json").unlink()
        assert train(recipe, run, resume=True, device="cpu").steps == 2
    again = read_recipe_file(tmp_path / "bytes" / "recipe.toml")
    assert train(again, tmp_path / "again", device="cpu").data["vocab_size"] == 270


def test_the_card_has_names_for_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they were given, also where a run went on by the whole paths of its recipe.toml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text(text(0, 400))
    own = ["data.path=here/../mine.txt", "train.steps=4", "train.save_every=2"]
    (tmp_path / "here").mkdir()
    train(tiny("lm-text", tmp_path / "data", *own), "runs/first", device="cpu")
    recipe = tiny("lm-text", tmp_path / "data", *own, "model.init=runs/first/checkpoint-2")
    train(recipe, "runs/second", device="cpu")
    (tmp_path / "runs" / "second" / "run.json").unlink()
    cards = [(tmp_path / "runs" / "second" / "README.md").read_text()]
    train(None, "runs/second", resume=True, device="cpu")
    cards.append((tmp_path / "runs" / "second" / "README.md").read_text())
    for card in cards:
        table = card[card.index("## Recipe") :]
        assert 'path = ["mine.txt"]' in table
        assert 'init = "first/checkpoint-2"' in table
        assert str(tmp_path) not in table
    assert read_recipe_file(tmp_path / "runs" / "second" / "recipe.toml").data.path == (str(tmp_path / "mine.txt"),)


def test_bytes_of_model_init_are_recorded_as_bytes(tmp_path: Path) -> None:
    watch = Noted()
    train(tiny("lm-text", tmp_path / "data"), tmp_path / "first", device="cpu")
    recipe = tiny("lm-text", tmp_path / "data", f'model.init="{tmp_path / "first"}"')
    train(recipe, tmp_path / "second", device="cpu", watch=watch)
    assert not [words for words in watch.words if "tokenizer" in words]
    assert read_recipe_file(tmp_path / "second" / "recipe.toml").tokenizer == recipe.tokenizer


def test_a_model_to_start_from_that_does_not_fit(tmp_path: Path) -> None:
    """Ids of the one task would have been read as those of the other."""
    for name in ("lm-text", "lra-image"):
        train(tiny(name, tmp_path / name), tmp_path / "runs" / name, device="cpu")
    for name, init, message in (
        ("lra-listops", "lm-text", "of 259 tokens, gives other ids than tokenizer.kind='task' of lra-listops"),
        ("lra-text", "lra-image", "gives other ids than tokenizer.kind='task' of lra-text"),
        ("translate-multi30k", "lm-text", "task='translate' needs an encoder–decoder"),
        ("lra-pathfinder", "lra-image", "pictures of 1,024 pixels and 64 learned positions: each pixel needs its own"),
    ):
        recipe = tiny(name, tmp_path / f"{name}-data", f'model.init="{tmp_path / "runs" / init}"')
        with pytest.raises(BadRecipe, match=message):
            train(recipe, tmp_path / "run", device="cpu")
    for name, init, more in (("lra-text", "lm-text", []), ("lra-pathfinder", "lra-image", ["data.skip_black=false"])):
        recipe = tiny(name, tmp_path / f"{name}-data", f'model.init="{tmp_path / "runs" / init}"', *more)
        assert train(recipe, tmp_path / name / "run", device="cpu").steps == 2


def test_a_head_that_read_something_else_is_new(tmp_path: Path) -> None:
    """Also where it has the same shape: 16 pooled numbers, or 16 of a layer between."""
    for name, field in (("with", "model.classifier_hidden_size=16"), ("without", "model.classifier_hidden_size=0")):
        train(tiny("lra-listops", tmp_path / "data", field), tmp_path / name, device="cpu")
    for start, field in (("with", "model.classifier_hidden_size=0"), ("without", "model.classifier_hidden_size=16")):
        recipe = tiny("lra-listops", tmp_path / "data", field, f'model.init="{tmp_path / start}"')
        model = make_model(recipe, open_data(recipe, tmp_path / "data-cache"))
        before = load_model(tmp_path / start)
        assert torch.equal(model.model.norm.weight, before.model.norm.weight)
        assert model.score.weight.shape == before.score.weight.shape
        assert not torch.equal(model.score.weight, before.score.weight)
        assert not model.score.bias.any()


def test_an_unwritable_cache_is_the_caches(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="name another folder with --cache"):
        train(tiny("lm-stdlib", tmp_path / "data"), tmp_path / "run", device="cpu", cache=tmp_path / "file" / "cache")


def test_resume_refuses_another_recipe_and_takes_harmless_changes(tmp_path: Path) -> None:
    recipe = tiny("lm-stdlib", tmp_path / "data", "train.steps=4", "train.save_every=2")
    train(recipe, tmp_path / "run", device="cpu")
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(ValueError, match=r"train\.learning_rate=0\.5"):
        train(recipe.with_values(["train.learning_rate=0.5"]), tmp_path / "run", resume=True, device="cpu")
    with pytest.raises(ValueError, match=r"model\.attention"):
        train(recipe.with_values(["model.attention=softmax"]), tmp_path / "run", resume=True, device="cpu")
    more = recipe.with_values(["train.log_every=2", "train.keep=1"])
    assert train(more, tmp_path / "run", resume=True, device="cpu").steps == 4


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    recipe, watch = tiny("lm-stdlib", tmp_path / "data"), Noted()
    first = train(recipe, tmp_path / "run", device="cpu")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert train(None, tmp_path / "run", resume=True, device="cpu", watch=watch) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    assert "nothing to resume" in watch.words[-1]


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_an_interrupted_run_saves_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny("lm-stdlib", tmp_path / "data", "train.steps=6", "model.hidden_dropout=0.1")
    train(recipe, tmp_path / "whole", device="cpu")
    plain = engine.RunTrainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(engine.RunTrainer, "training_step", training_step)
        stopped = train(recipe, tmp_path / "run", device="cpu")
    assert stopped.interrupted
    assert stopped.steps == 3
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["checkpoint-3"]
    assert not (tmp_path / "run" / "run.json").exists()
    assert read_metrics(tmp_path / "run")[-1]["event"] == "interrupted"
    train(None, tmp_path / "run", resume=True, device="cpu")
    both = [[x["loss"] for x in read_metrics(tmp_path / run) if x["kind"] == "train"] for run in ("run", "whole")]
    assert both[0] == both[1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    train(
        tiny("lm-stdlib", tmp_path / "data", "train.steps=7", "train.save_every=1", "train.keep=2"),
        tmp_path / "run",
        device="cpu",
    )
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["checkpoint-6", "checkpoint-7"]
    assert not list((tmp_path / "run").glob(".*"))


def test_lines_past_a_step_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"kind": "event", "step": 0}, {"kind": "train", "step": 1}, {"kind": "train", "step": 2}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "train", "st')
    cut_after(path, 1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines[:2]


def test_what_was_best_is_what_is_left(tmp_path: Path) -> None:
    """A rate so high that later steps spoil the model: the run ends with the best evaluation's weights."""
    options = ("train.steps=12", "eval.every=2", "train.learning_rate=1.0", "train.schedule=constant", "train.clip=0")
    best = train(tiny("lm-stdlib", tmp_path / "data", *options), tmp_path / "best", device="cpu")
    last = train(tiny("lm-stdlib", tmp_path / "data", *options, "eval.keep=last"), tmp_path / "last", device="cpu")
    evals = [line for line in read_metrics(tmp_path / "best") if line["kind"] == "eval"]
    lowest = min(evals, key=lambda line: line["loss"])
    assert lowest["step"] < 12
    assert best.best_step == lowest["step"]
    assert best.metrics["loss"] == lowest["loss"] < last.metrics["loss"] == evals[-1]["loss"]
    ours, theirs = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("best", "last"))
    assert ours != theirs


class StopAt(Watch):
    """Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def line(self, line: dict[str, Any]) -> None:
        if (line["kind"], line["step"]) == ("train", self.step):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("first", ["last", "best"])
def test_the_best_is_kept_from_where_a_run_goes_on(first: str, tmp_path: Path) -> None:
    """eval.keep is free to change: what eval.keep=last did not keep was missed at the end, or older weights taken."""
    recipe, run = tiny("lm-stdlib", tmp_path / "data", "train.steps=6", "eval.every=2"), tmp_path / "run"
    train(recipe.with_values([f"eval.keep={first}"]), run, device="cpu", watch=StopAt(2))
    assert (run / "best").is_dir() == (first == "best")
    train(recipe.with_values(["eval.keep=last"]), run, resume=True, device="cpu", watch=StopAt(4))
    progress = checkpoints(run)[-1] / "progress.json"
    told = json.loads(progress.read_text())
    assert told["best"]["step"] == 4
    told["best"]["metrics"]["loss"] = 0.1  # nothing after it is as good
    progress.write_text(json.dumps(told))
    watch = Noted()
    again = train(recipe.with_values(["eval.keep=best"]), run, resume=True, device="cpu", watch=watch)
    assert again.best_step == 6
    assert "the weights of step 4, the best so far, were not kept" in " ".join(watch.words)
    assert (run / "model.safetensors").is_file()
