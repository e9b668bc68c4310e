"""A queue does each job once, whatever happens to it on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from training_data import tiny

from cosformer.sweeps import Job, QueueSettings, Running, attention_variants, jobs_of, run_queue
from cosformer.sweeps.jobs import job_file, run_folder
from cosformer.sweeps.outcomes import read_outcome
from cosformer.sweeps.table import read_table
from cosformer.training import BadRecipe, read_metrics

SETTINGS = QueueSettings(name="test", device="cpu")


def planned(tmp_path: Path, *attentions: str, more: tuple[str, ...] = (), pretrain: bool = False) -> list[Job]:
    recipe = tiny("lra-listops", tmp_path / "data", *more)
    return jobs_of({"listops": recipe}, attention_variants(attentions or ("cosformer",)), [0], pretrain=pretrain)


def test_runs_tests_and_collects(tmp_path: Path) -> None:
    folder, jobs = tmp_path / "queue", planned(tmp_path, "cosformer", "rfa_gated")
    told: list[tuple[str, str]] = []
    assert run_queue(folder, jobs, SETTINGS, ended=lambda job, found: told.append((job.name, found["state"])))
    assert told == [("listops-cosformer-0", "done"), ("listops-rfa_gated-0", "skipped")]
    found = read_table(folder)
    done, refused = found["cells"]
    assert (done["split"], done["metric"], done["examples"], done["steps"]) == ("test", "accuracy", 8, 2)
    assert 0 <= done["low"] <= done["value"] <= done["high"] <= 1
    assert done["steps_per_second"] > 0
    assert done["memory_bytes"] > 0
    assert "rfa_gated" in refused["why"]
    assert "causal" in refused["why"]  # the reason of the rival itself
    assert [row["state"] for row in found["table"]] == ["done", "skipped"]
    before = (run_folder(folder, "listops-cosformer-0") / "run.json").stat().st_mtime_ns
    told.clear()
    assert run_queue(folder, jobs, SETTINGS, ended=lambda job, found: told.append((job.name, found["state"])))
    assert told == [("listops-rfa_gated-0", "skipped")]  # what was done is not done again; what was not, is tried
    assert (run_folder(folder, "listops-cosformer-0") / "run.json").stat().st_mtime_ns == before


def test_pretrained_model_starts_from_its_own(tmp_path: Path) -> None:
    folder, jobs = tmp_path / "queue", planned(tmp_path, more=("pretrain.steps=2",), pretrain=True)
    assert run_queue(folder, jobs, SETTINGS)
    before, after = read_table(folder)["cells"]
    assert (before["metric"], before["split"], before["state"]) == ("perplexity", "valid", "done")
    assert (after["metric"], after["split"], after["state"]) == ("accuracy", "test", "done")


def test_absent_data_is_a_cell_with_the_reason(tmp_path: Path) -> None:
    recipe = tiny("lra-image", tmp_path / "data").with_values([f"data.path={json.dumps([str(tmp_path / 'no')])}"])
    jobs = jobs_of({"image": recipe}, attention_variants(["cosformer"]), [0])
    assert run_queue(tmp_path / "queue", jobs, SETTINGS)
    (cell,) = read_table(tmp_path / "queue")["cells"]
    assert cell["state"] == "skipped"
    assert "cifar-10-binary" in cell["why"]


def test_what_waits_in_vain_says_for_whom(tmp_path: Path) -> None:
    recipe = tiny("lra-image", tmp_path / "data", "pretrain.steps=2")
    recipe = recipe.with_values([f"data.path={json.dumps([str(tmp_path / 'no')])}"])
    jobs = jobs_of({"image": recipe}, attention_variants(["cosformer"]), [0], pretrain=True)
    assert run_queue(tmp_path / "queue", jobs, SETTINGS)
    cells = read_table(tmp_path / "queue")["cells"]
    assert [cell["state"] for cell in cells] == ["skipped", "skipped"]
    assert cells[1]["why"].startswith("image-pretrain-cosformer-0, which it starts from, skipped: lra-image")


def test_a_job_that_is_killed_is_a_cell(tmp_path: Path) -> None:
    """As the system does when memory runs out; the next job goes on."""
    jobs = planned(tmp_path, "cosformer", "linear", more=("train.steps=100000",))
    jobs = [jobs[0], *planned(tmp_path, "linear")]

    def kill(running: list[Running], left: int) -> None:
        for one in running:
            if one.job.variant == "cosformer" and "step" in one.last_words:
                os.kill(one.process.pid, signal.SIGKILL)

    assert run_queue(tmp_path / "queue", jobs, SETTINGS, looked=kill)
    killed, after = read_table(tmp_path / "queue")["cells"]
    assert killed["state"] == "failed"
    assert killed["why"] == "killed by signal 9 (the system does so when memory runs out)"
    assert after["state"] == "done"


def test_another_recipe_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    job_file(folder, "x").parent.mkdir(parents=True)
    (one,) = planned(tmp_path)
    job_file(folder, one.name).write_text(one.recipe.toml())
    with pytest.raises(BadRecipe, match=r"listops-cosformer-0 by another recipe: train\.learning_rate=0\.5 \(there"):
        run_queue(folder, planned(tmp_path, more=("train.learning_rate=0.5",)), SETTINGS)


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_queue import SETTINGS, planned
from cosformer.sweeps import run_queue
if __name__ == "__main__":
    at = Path(sys.argv[1])
    jobs = planned(at, "cosformer", "linear", more=("train.steps=60", "train.save_every=5", "eval.every=60"))
    sys.exit(0 if run_queue(at / "queue", jobs, SETTINGS) else 130)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_queue_that_ends_early_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    """At most the current run is lost, and of that what came after its checkpoint; nothing runs on unseen."""
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), str(tests.parent), str(tests.parents[1])])
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, script, tmp_path, tests], env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE
        )

    queue, run = start(), run_folder(tmp_path / "queue", "listops-cosformer-0")
    _until(lambda: (run / "checkpoint-5").is_dir() or (run / "checkpoint-10").is_dir())
    queue.send_signal(number)
    queue.communicate(timeout=60)
    assert queue.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    _until(lambda: not _processes_of(tmp_path))
    assert read_outcome(tmp_path / "queue", "listops-cosformer-0") is None
    if number == signal.SIGINT:
        assert [cell["state"] for cell in read_table(tmp_path / "queue")["cells"]] == ["interrupted", "waiting"]
    again = start()
    _, said = again.communicate(timeout=180)
    assert again.returncode == 0, said
    found = read_table(tmp_path / "queue")
    assert [cell["state"] for cell in found["cells"]] == ["done", "done"]
    events = [line["event"] for line in read_metrics(run) if line["kind"] == "event"]
    assert "resume" in events  # it went on; it did not begin anew


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


def _until(true: Any, seconds: float = 90) -> None:
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < seconds, "it took too long"
        time.sleep(0.05)


def test_two_queues_do_not_share_a_folder(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path / "queue"
    folder.mkdir()
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="a queue is running in"):
            run_queue(folder, planned(tmp_path), SETTINGS)
