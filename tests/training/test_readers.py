"""Processes that read data outlive a signal that is meant for the run, and never the run itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from training_data import tiny

from cosformer.training import train
from cosformer.training.checkpoint import newest, step_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the readers in /proc")
ENDLESS = ("train.steps=1000000", "train.workers=2", "eval.every=1000000", "train.schedule=constant")
LEFT_OPEN = """
from torch.utils.data import DataLoader
from cosformer.training.readers import read_until_ended
loader = DataLoader(range(100), num_workers=2, persistent_workers=True, worker_init_fn=read_until_ended)
reading = iter(loader)
next(reading)
"""


def began(folder: Path) -> "subprocess.Popen[str]":
    """A run that never ends by itself, with readers, in a group of processes of its own."""
    (folder / "mine.toml").write_text(tiny("lm-stdlib", folder / "data", *ENDLESS).toml())
    command = [sys.executable, "-m", "cosformer.cli.main", "train", str(folder / "mine.toml"), "--out"]
    command += [str(folder / "run"), "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    told = folder / "run" / "metrics.jsonl"
    until(lambda: run.poll() is not None or (told.is_file() and '"train"' in told.read_text()))
    return run


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def readers(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_term_to_all_processes_saves_the_run(tmp_path: Path) -> None:
    with began(tmp_path) as run:
        assert len(readers(run.pid)) == 2
        os.killpg(run.pid, signal.SIGTERM)
        told = run.communicate(timeout=60)[1]
    assert run.returncode == 130, told
    assert "which is saved; go on with: cosformer train --out" in told
    last = newest(tmp_path / "run")
    assert last is not None
    more = ["train.schedule=constant", f"train.steps={step_of(last) + 1}", "train.workers=0"]
    (tmp_path / "run" / "recipe.toml").write_text(tiny("lm-stdlib", tmp_path / "data", *ENDLESS, *more).toml())
    assert train(None, tmp_path / "run", resume=True, device="cpu").steps == step_of(last) + 1


def test_readers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    with began(tmp_path) as run:
        left = readers(run.pid)
        assert len(left) == 2
        run.kill()
        run.communicate(timeout=60)
    until(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in left))


def test_readers_end_where_a_program_ends_with_its_loader_open() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
