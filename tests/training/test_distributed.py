"""Two processes through the ordinary launchers, over gloo: the numbers of one process, whatever happens on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from training_data import tiny

from cosformer.training import Recipe, engine, read_metrics, train
from cosformer.training.checkpoint import checkpoints, newest, read_weights, step_of
from cosformer.training.run_folder import write_recipe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
STEPS = 24
RECIPE = (f"train.steps={STEPS}", "train.batch=8", "train.save_every=4", "eval.every=12", "eval.keep=last",
          # φ > 0: relu's weights can all be 0, where the output jumps and rounding decides to which side
          "model.feature_map=elu1", "model.hidden_dropout=0", "sample.prompts=['the']",
          "sample.temperature=0")  # fmt: skip
RUN = ["-m", "cosformer.cli.main", "train"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the recipe, and a run of it in one process."""
    made = tmp_path_factory.mktemp("distributed")
    recipe = tiny("lm-stdlib", made / "data", *RECIPE)
    (made / "mine.toml").write_text(recipe.toml())
    train(recipe, made / "one", device="cpu")
    return made


def recipe_of(folder: Path) -> Recipe:
    return tiny("lm-stdlib", folder / "data", *RECIPE)


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": os.getcwd()}


def launcher(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def losses(run: Path, kind: str = "train") -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_metrics(run) if line["kind"] == kind}


def close(run: Path, one: Path, upto: int = STEPS) -> None:
    """Sums of fp32 in another order: each step may add a few units in the last place (5e-7 of a loss of 5)."""
    ours, theirs = losses(run), losses(one)
    assert set(range(1, upto + 1)) <= set(ours)
    gaps = torch.tensor([ours[step] - theirs[step] for step in range(1, upto + 1)], dtype=torch.float64)
    allowed = 1e-6 * torch.arange(1, upto + 1)
    assert (gaps.abs() <= 1e-6 + allowed).all(), gaps
    assert abs(gaps.mean()) < 1e-6 * upto / 4


def same_model(run: Path, one: Path) -> None:
    ours, theirs = read_weights(run), read_weights(one)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert (value - theirs[name]).abs().mean() < 2e-5, name  # of weights of about 0.02 that moved by about 0.02
    for step, loss in losses(one, "eval").items():
        assert losses(run, "eval")[step] == pytest.approx(loss, abs=1e-4)


def stopped_after(step: int, recipe: Recipe, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = engine.RunTrainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == step - 1:
            self.interrupted = True
        return plain(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(engine.RunTrainer, "training_step", training_step)
        assert train(recipe, run, device="cpu").interrupted


def test_one_process_begins_and_two_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DDP by torchrun, from a checkpoint of one process. Only the first process writes and speaks."""
    run = folder / "ddp"
    stopped_after(3, recipe_of(folder), run, monkeypatch)
    assert [path.name for path in checkpoints(run)] == ["checkpoint-3"]
    command = [launcher("torchrun"), "--nproc-per-node", "2", *RUN, "--out", str(run), "--resume", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("going on after step 3") == 1
    assert done.stderr.count("2 processes") == 1
    assert done.stdout.count("s of training") == 1
    close(run, folder / "one")
    same_model(run, folder / "one")
    summary = json.loads((run / "run.json").read_text())
    assert (summary["processes"], summary["sharded"]) == (2, False)
    assert summary["tokens"] == json.loads((folder / "one" / "run.json").read_text())["tokens"]


def test_two_begin_sharded_one_is_killed_and_one_process_ends_it(folder: Path) -> None:
    """FSDP2 by accelerate launch. The job ends with an error soon after the kill; its checkpoint is whole."""
    run = folder / "fsdp"
    command = [
        launcher("accelerate"), "launch", "--use_fsdp", "--fsdp_version", "2", "--num_processes", "2",
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--fsdp_auto_wrap_policy",
        "TRANSFORMER_BASED_WRAP", *RUN, str(folder / "long.toml"), "--out", str(run), "--device", "cpu",
    ]  # fmt: skip
    # so many steps that it never ends by itself; of a constant rate, so that the first of them are the same
    long = recipe_of(folder).with_values(["train.steps=1000000", "train.schedule=constant"])
    (folder / "long.toml").write_text(long.toml())
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()) as job:
        deadline = time.monotonic() + 90
        while (newest(run) is None or step_of(newest(run) or run) < 8) and job.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers = [pid for pid in descendants(job.pid) if "cosformer.cli.main" in command_line(pid)]
        assert len(workers) == 2, workers
        os.kill(max(workers), signal.SIGKILL)
        told = job.communicate(timeout=90)[1]
    assert job.returncode != 0
    assert "SIGKILL" in told or "Signal 9" in told
    saved = newest(run)
    assert saved is not None
    assert not (run / "run.json").exists()
    events = [line for line in read_metrics(run) if line["kind"] == "event"]
    assert (events[0]["processes"], events[0]["sharded"]) == (2, True)
    at = step_of(saved)
    rest = long.with_values([f"train.steps={at + 4}"])
    whole = train(rest, folder / "one-long", device="cpu")
    assert not whole.sharded
    write_recipe(run, rest)  # fewer steps of a constant rate: the same curve
    train(None, run, resume=True, device="cpu")
    close(run, folder / "one-long", at + 4)
    same_model(run, folder / "one-long")


def test_a_tied_encoder_decoder_begins_alone_and_goes_on_sharded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stacks and the head have one weight, which FSDP2 takes in one group only."""
    few, run, one = 8, folder / "translate", folder / "translate-one"
    recipe = tiny("translate-multi30k", folder / "pairs", *RECIPE, f"train.steps={few}", "eval.every=4")
    assert recipe.model.config.get("tie_word_embeddings") is not False
    train(recipe, one, device="cpu")
    stopped_after(3, recipe, run, monkeypatch)
    command = [launcher("torchrun"), "--nproc-per-node", "2", *RUN, "--out", str(run), "--resume", "--device", "cpu"]
    command += ["--set", "train.fsdp=true"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    close(run, one, few)
    same_model(run, one)
    assert json.loads((run / "run.json").read_text())["sharded"]


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_the_comparison_sees_another_order(folder: Path) -> None:
    train(recipe_of(folder).with_values(["seed=1", "eval.every=1000"]), folder / "other", device="cpu")
    with pytest.raises(AssertionError):
        close(folder / "other", folder / "one")


def test_a_share_of_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="torchrun or accelerate launch"):
        train(recipe_of(folder).with_values(["train.fsdp=true"]), folder / "alone", device="cpu")
