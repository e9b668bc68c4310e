"""Killed at any moment, a run goes on and ends with the same losses and the same weights, bit for bit."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from training_data import tiny

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kills processes by signal")
STEPS = 8
RECIPE = (f"train.steps={STEPS}", "train.save_every=3", "eval.every=2", "train.keep=2", "model.hidden_dropout=0.2",
          "sample.prompts=['the']", "train.micro_batch=2", "train.log_every=2")  # fmt: skip

# One process imports torch and forks for every run: importing it takes longer than the runs.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from cosformer.training import load_recipe, train
from cosformer.training import checkpoint, engine, recorder, run, run_folder

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def after(owner, name, count):
    "Dies when owner.name was called so often, after the call."
    plain, calls = getattr(owner, name), []
    def called(*args, **kwargs):
        out = plain(*args, **kwargs)
        calls.append(1)
        if len(calls) == count:
            die()
        return out
    setattr(owner, name, called)

def half_written(path_or_file, count):
    plain, calls = torch.save, []
    def save(value, path):
        calls.append(1)
        plain(value, path)
        if len(calls) == count:
            whole = Path(path).read_bytes()
            Path(path).write_bytes(whole[: len(whole) // 2])
            die()
    engine.torch.save = save

MOMENTS = {
    "never": lambda: None,
    "while data is prepared": lambda: after(run, "open_data", 1),
    "in the first step": lambda: after(engine.RunTrainer, "training_step", 1),
    "in a step": lambda: after(engine.RunTrainer, "training_step", 11),
    "while a checkpoint is written": lambda: half_written(None, 2),
    "before a checkpoint gets its name": lambda: after(engine.RunTrainer, "keep_best", 2),
    "while an old checkpoint is removed": lambda: after(checkpoint.shutil, "rmtree", 8),
    "while a line is logged": lambda: after(recorder.Recorder, "write", 6),
    "after the last step": lambda: after(engine.RunTrainer, "_save_checkpoint", 3),
    "while the model is put in place": lambda: after(run_folder.shutil, "copyfile", 3),
    "before the card is written": lambda: after(run, "put_in_place", 1),
}

def child(moment, recipe, out, resume):
    MOMENTS[moment]()
    train(load_recipe(recipe), out, resume=resume, device="cpu")

for line in sys.stdin:
    moment, recipe, out, resume, more, delay = json.loads(line)
    told = Path(out, "metrics.jsonl")
    size = told.stat().st_size if told.exists() else 0
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(moment, recipe, out, resume)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    if more:  # kill when so many more bytes are told, a little later
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            now = told.stat().st_size if told.exists() else 0
            size = min(size, now)  # it is cut at the checkpoint
            if now >= size + more:
                time.sleep(delay)
                os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.001)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
MOMENTS = [
    "while data is prepared", "in the first step", "in a step", "while a checkpoint is written",
    "before a checkpoint gets its name", "while an old checkpoint is removed", "while a line is logged",
    "after the last step", "while the model is put in place", "before the card is written",
]  # fmt: skip


class Driver:
    """Runs in forks of one process; `call` gives their exit codes, negative for signals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recipe = folder / "mine.toml"
        self.recipe.write_text(tiny("lm-stdlib", folder / "data", *RECIPE).toml())
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def call(self, out: Path, *, moment: str = "never", resume: bool = False, more: int = 0, delay: float = 0.0) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([moment, str(self.recipe), str(out), resume, more, delay]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> "pytest.Generator[Driver]":  # pyright: ignore
    made = Driver(tmp_path_factory.mktemp("killed"))
    assert made.call(made.folder / "whole") == 0
    yield made
    assert made.process.stdin is not None
    assert made.process.stdout is not None
    made.process.stdin.close()
    made.process.wait(timeout=20)
    made.process.stdout.close()


def told(run: Path) -> list[tuple[object, ...]]:
    """Everything but times, memory and events."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = ("kind", "step", "loss", "learning_rate", "grad_norm", "tokens", "bits_per_byte", "prompt", "text")
    return [tuple(line.get(name) for name in names) for line in lines if line["kind"] != "event"]


def same(run: Path, whole: Path) -> None:
    expected = told(whole)
    assert len(expected) == 3 * STEPS // 2  # a line of training, one of evaluation and a sample at every second step
    assert told(run) == expected
    for name in ("model.safetensors", "config.json", "tokenizer.json", "generation_config.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    assert sorted(p.name for p in run.iterdir()) == sorted(p.name for p in whole.iterdir())
    last = f"checkpoint-{STEPS}"
    assert (run / last / "model.safetensors").read_bytes() == (whole / last / "model.safetensors").read_bytes()


@pytest.mark.parametrize("moment", MOMENTS)
def test_goes_on_after_a_kill(moment: str, driver: Driver) -> None:
    run = driver.folder / moment.replace(" ", "-")
    assert driver.call(run, moment=moment) == -signal.SIGKILL
    assert driver.call(run, resume=True) == 0
    same(run, driver.folder / "whole")


def test_killed_again_and_again(driver: Driver) -> None:
    """At moments nobody chose, many times in one run."""
    run, chance, kills = driver.folder / "again", random.Random(0), 0
    while kills < 5:
        more, delay = chance.randrange(1, 900), chance.uniform(0, 0.03)
        if driver.call(run, resume=True, more=more, delay=delay) == 0:
            break
        kills += 1
    assert kills > 2
    assert driver.call(run, resume=True) == 0
    same(run, driver.folder / "whole")


def test_the_comparison_sees_another_loss(driver: Driver) -> None:
    run = driver.folder / "other"
    shutil.copytree(driver.folder / "whole", run)
    same(run, driver.folder / "whole")
    told = run / "metrics.jsonl"
    told.write_text(re.sub(r'"loss": (\d)', r'"loss": 1\1', told.read_text(), count=1))
    with pytest.raises(AssertionError):
        same(run, driver.folder / "whole")
