"""results/rented.py: what is timed is alone, what hangs is killed, what is late ends politely."""

import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SCRIPT = Path(__file__).resolve().parents[2] / "results" / "rented.py"
# In place of make.sh: a queue has a job in a session of its own, as ours do, and ends it when it is asked to
MAKE = """
echo "$1 begins $(date +%s%N)" >> story
case $1 in
train) sleep 1 ;;
*) "$PYTHON" queue.py "$1" ;;
esac
echo "$1 ends $(date +%s%N)" >> story
"""
QUEUE = """
import signal, subprocess, sys, time
job = subprocess.Popen([sys.executable, "job.py", sys.argv[1]], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: job.terminate())
while job.poll() is None:
    time.sleep(0.05)
"""
JOB = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(time.time_ns()))
end = time.monotonic() + {"pathfinder": 60, "text": 1}.get(sys.argv[1], 5)
while time.monotonic() < end and not asked:
    open("beats-" + sys.argv[1], "a").write(f"{time.time_ns()}\\n")
    time.sleep(0.05)
open("asked-" + sys.argv[1], "w").write(str(len(asked)))
"""
# Until both queues are under way, however busy the machine is
UNDER_WAY = """
import os, time
while not all(os.path.exists("beats-" + name) for name in ("pretrained", "translation")):
    time.sleep(0.02)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


@pytest.fixture
def rented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("rented", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rented", module)  # dataclasses ask for it
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    for name, text in (("make.sh", MAKE), ("queue.py", QUEUE), ("job.py", JOB)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "PATIENCE", 3.0)
    monkeypatch.setattr(module, "LOOK", 0.05)
    module.LOGS.mkdir(parents=True)
    return module


def test_the_plan(rented: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, hangs = [sys.executable, "-c", "pass"], [sys.executable, "-c", DEAF]
    monkeypatch.setattr(rented, "graphs_test", lambda: [rented.Task("tests-graphs", short)])
    monkeypatch.setattr(rented, "gpu_tests", lambda _: [rented.Task("tests-training", hangs, 1.0)])
    monkeypatch.setattr(rented, "warming", lambda: rented.Task("warm", [sys.executable, "-c", UNDER_WAY]))
    monkeypatch.setattr(rented, "cosformer", lambda *_: short)
    begin = time.monotonic()
    monkeypatch.setattr(rented, "TOGETHER", 1)
    stages = ["pretrained", "translation", "train", "text", "pathfinder", "image"]
    rented.go("data", 0.25, stages, tests=["training"])  # 15 s, of which the last three are patience
    assert time.monotonic() - begin < 40
    story = rented.STORY.read_text()
    assert "tests-training: past its 1 s" in story
    assert "pathfinder: time is up" in story
    assert "text: time is up" not in story
    assert "image: no time was left" in story
    assert story.endswith("done\n")
    told = dict(line.rsplit(" ", 1) for line in (tmp_path / "story").read_text().splitlines())
    alone = int(told["train begins"]), int(told["train ends"])
    for name in ("pretrained", "translation"):
        beats = [int(line) for line in (tmp_path / f"beats-{name}").read_text().split()]
        assert min(beats) < alone[0]  # under way before
        assert max(beats) > alone[1]  # and after,
        assert not [beat for beat in beats if alone[0] < beat < alone[1]]  # and stopped meanwhile
    assert int(told["text begins"]) > alone[1]
    assert int(told["pathfinder begins"]) > int(told["text ends"])  # one of the arena at a time
    assert (tmp_path / "asked-pathfinder").read_text() == "1"  # once: asked twice, a run ends without a checkpoint
    assert (tmp_path / "asked-text").read_text() == "0"


def test_what_is_gathered(rented: ModuleType, tmp_path: Path) -> None:
    import tarfile

    for path in (
        "runs/lra/table.json",
        "runs/lra/data-cache/manifest.json",
        "runs/lra/runs/one/metrics.jsonl",
        "runs/lra/runs/one/checkpoint-5/config.json",
        "runs/lra/runs/one/best/config.json",
        "results/best.json",
        "runs/x/model.safetensors",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("{}")
    rented.gather(tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "rented.tgz") as archive:
        assert sorted(archive.getnames()) == [
            "results/best.json", "runs/lra/runs/one/metrics.jsonl", "runs/lra/table.json",
        ]  # fmt: skip


def test_stages_are_those_of_make(rented: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rented, "HERE", SCRIPT.parent)
    known = set(rented.known_stages())
    assert len(known) == 15
    assert {*rented.STAGES.split(","), *rented.ALONE, *rented.AT_ONCE} < known
    for task in [*rented.graphs_test(), *rented.gpu_tests(list(rented.TESTS))]:
        folders = [Path(SCRIPT.parents[1], word) for word in task.command if word.startswith("tests/")]
        assert folders
        assert all(map(os.path.isdir, folders))


def test_a_second_plan_is_not_over_before_it_began(
    rented: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rented, "known_stages", lambda: ["text"])
    monkeypatch.setattr(rented.subprocess, "Popen", lambda *_, **__: None)
    rented.tell("done")
    monkeypatch.setattr(sys, "argv", ["rented.py", "start", "data", "--stages", "text"])
    rented.main()
    begin = time.monotonic()
    rented.look(0.5)
    assert time.monotonic() - begin >= 0.5
    assert "the plan of 26 minutes: text" in capsys.readouterr().out


def test_a_stage_that_is_none_is_refused(
    rented: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rented, "HERE", SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", ["rented.py", "start", "data", "--stages", "train,listop"])
    with pytest.raises(SystemExit):
        rented.main()
    assert "make.sh has no stage listop: there are speed, train" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["rented.py", "start", "data", "--stages", "text=rfa+linear", "--tests", "rival"])
    with pytest.raises(SystemExit):
        rented.main()
    assert "there are no tests rival: use some of training, rivals" in capsys.readouterr().err


def test_without_anything_timed_nothing_is_stopped(rented: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rented.go("data", 0.2, ["translation", "text"], tests=[])
    story = rented.STORY.read_text()
    assert "alone" not in story
    assert "tests-" not in story
    assert "warm" not in story
    assert all(f"{name}: ended with 0" in story for name in ("translation", "text"))
