"""A queue does each job once, whatever happens to it on the way. A process takes seconds to start: few are."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from training_data import tiny

from cosformer.bench.environment import command
from cosformer.sweeps import Job, QueueSettings, Running, attention_variants, jobs_of, run_queue
from cosformer.sweeps.jobs import QUEUE, job_file, run_folder
from cosformer.sweeps.outcomes import read_outcome
from cosformer.sweeps.table import read_table
from cosformer.tasks.locks import held
from cosformer.training import read_metrics

SETTINGS = QueueSettings(name="test", device="cpu")


def planned(tmp_path: Path, *attentions: str, more: tuple[str, ...] = (), pretrain: bool = False) -> list[Job]:
    recipe = tiny("lra-listops", tmp_path / "data", "pretrain.steps=2", *more)
    return jobs_of({"listops": recipe}, attention_variants(attentions or ("cosformer",)), [0], pretrain=pretrain)


def without_data(tmp_path: Path) -> list[Job]:
    recipe = tiny("lra-image", tmp_path / "data", "pretrain.steps=2")
    recipe = recipe.with_values([f"data.path={json.dumps([str(tmp_path / 'no')])}"])
    return jobs_of({"image": recipe}, attention_variants(["cosformer"]), [0], pretrain=True)


def test_what_is_done_refused_absent_and_waited_for_in_vain(tmp_path: Path) -> None:
    folder, jobs = tmp_path / "queue", planned(tmp_path, "cosformer", "rfa_gated")
    told: list[tuple[str, str]] = []

    def ended(job: Job, found: dict[str, str]) -> None:
        told.append((job.name, found["state"]))

    assert run_queue(folder, [*jobs, *without_data(tmp_path)], SETTINGS, ended=ended)
    assert told == [
        ("listops-cosformer-0", "done"), ("listops-rfa_gated-0", "skipped"), ("image-pretrain-cosformer-0", "skipped"),
        ("image-cosformer-0", "skipped"),
    ]  # fmt: skip
    found = read_table(folder)
    done, refused, absent, in_vain = found["cells"]
    assert (done["split"], done["metric"], done["examples"], done["steps"]) == ("test", "accuracy", 8, 2)
    assert 0 <= done["low"] <= done["value"] <= done["high"] <= 1
    assert done["steps_per_second"] > 0
    assert done["memory_bytes"] > 0
    stored = json.loads((run_folder(folder, "listops-cosformer-0") / "run.json").read_text())
    assert stored["environment"]["command"] == command()  # that of the queue; a job's own was typed by nobody
    assert "rfa_gated" in refused["why"]
    assert "causal" in refused["why"]  # the reason of the rival itself
    assert "cifar-10-binary" in absent["why"]
    assert in_vain["why"].startswith("image-pretrain-cosformer-0, which it starts from, skipped: lra-image")
    assert [row["state"] for row in found["table"]] == ["done", "skipped", "skipped", "skipped"]
    told.clear()
    assert run_queue(folder, jobs[:1], SETTINGS, ended=ended)
    assert told == []  # what was done is not done again


def test_a_job_that_is_killed_is_a_cell_and_others_go_on_from_their_own_pretraining(tmp_path: Path) -> None:
    """Killed as the system does when memory runs out."""
    jobs = [*planned(tmp_path, more=("train.steps=100000",)), *planned(tmp_path, "linear", pretrain=True)]
    folder = tmp_path / "queue"

    def kill(running: list[Running], left: int) -> None:
        for one in running:
            if one.job.variant == "cosformer" and "step" in one.last_words:
                os.kill(one.process.pid, signal.SIGKILL)

    assert run_queue(folder, jobs, SETTINGS, looked=kill)
    killed, before, after = read_table(folder)["cells"]
    assert killed["state"] == "failed"
    assert killed["why"] == "killed by signal 9 (the system does so when memory runs out)"
    assert (before["metric"], before["split"], before["state"]) == ("perplexity", "valid", "done")
    assert (after["metric"], after["split"], after["state"]) == ("accuracy", "test", "done")
    assert "test" not in before["data"]  # it was never opened
    assert before["data"] == after["data"]


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_queue import SETTINGS, long
from cosformer.sweeps import run_queue
if __name__ == "__main__":
    run_queue(Path(sys.argv[1]) / "queue", long(Path(sys.argv[1])), SETTINGS)
"""


def long(tmp_path: Path) -> list[Job]:
    return planned(tmp_path, "cosformer", "linear", more=("train.steps=400", "train.save_every=5", "eval.every=400"))


def test_a_queue_that_is_killed_and_interrupted_goes_on(tmp_path: Path) -> None:
    """At most the current run is lost, and of that what came after its checkpoint; nothing runs on unseen."""
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), str(tests.parent), str(tests.parents[1])])
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    folder, jobs = tmp_path / "queue", long(tmp_path)
    run = run_folder(folder, jobs[0].name)
    queue = subprocess.Popen([sys.executable, script, tmp_path, tests], env={**os.environ, "PYTHONPATH": path})
    _until(lambda: _step(run) >= 5)
    assert [cell["state"] for cell in read_table(folder)["cells"]] == ["running", "waiting"]
    queue.kill()
    queue.wait(timeout=60)
    assert [cell["state"] for cell in read_table(folder)["cells"]] == ["interrupted", "waiting"]
    _until(lambda: not _processes_of(tmp_path))
    reached = _step(run)
    assert read_outcome(folder, jobs[0].name) is None

    def interrupt(running: list[Running], left: int) -> None:
        if _step(run) > reached:
            signal.raise_signal(signal.SIGINT)

    assert not run_queue(folder, jobs, SETTINGS, looked=interrupt)
    assert not _processes_of(tmp_path)
    assert [cell["state"] for cell in read_table(folder)["cells"]] == ["interrupted", "waiting"]
    assert run_queue(folder, jobs[:1], SETTINGS)
    assert [cell["state"] for cell in read_table(folder)["cells"]] == ["done"]
    begun = [line["step"] for line in read_metrics(run) if line.get("event") == "resume"]
    assert len(begun) == 2  # it went on twice; it did not begin anew
    assert begun[0] >= 5
    assert begun[1] > reached


def _step(run: Path) -> int:
    """Of the newest checkpoint; 0 where there is none."""
    return max((int(path.name.rpartition("-")[2]) for path in run.glob("checkpoint-*")), default=0)


def _processes_of(folder: Path) -> list[str]:
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = one.read_text()
        except OSError:
            continue
        if str(folder) in words and "cosformer.sweeps.child" in words:
            found.append(words)
    return found


def _until(true: Callable[[], bool], seconds: float = 90) -> None:
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < seconds, "it took too long"
        time.sleep(0.05)


def test_two_queues_do_not_share_a_folder(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path / "queue"
    folder.mkdir()
    assert not held(folder / QUEUE)
    with (folder / QUEUE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert held(folder / QUEUE)
        with pytest.raises(ValueError, match="a queue is running in"):
            run_queue(folder, planned(tmp_path), SETTINGS)
    assert not job_file(folder, "listops-cosformer-0").exists()
