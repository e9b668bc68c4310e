"""Spends the minutes of a rented GPU: its tests and stages of `make.sh`, side by side where nothing is timed.

    python results/rented.py start DATA --minutes 26   # in the background; returns at once
    python results/rented.py look 500                  # what is under way, for so many seconds or until all is done
    python results/rented.py gather FOLDER             # one archive of results, tables, logs and what runs have told

First the stages of training that launch little, beside one test of CUDA graphs; then these are stopped for a while,
and what is timed has the GPU to itself; then the arena, a few queues at a time in the order of --stages, beside the
other tests. What is made lies in runs/rented. What is not done when the minutes are over ends with a checkpoint, and
its table says so. Everything has a limit of its own: what hangs does not take the rest along. On another machine, what
`gather` packed, unpacked beforehand, is not done again.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNS = Path("runs")
LOGS = RUNS / "rented"
FILES = {"RESULTS": str(LOGS / "results"), "FIGURES": str(LOGS / "figures")}
"""Where stages write: laid anew, a checkout loses what it does not ignore."""
STORY = LOGS / "story.txt"
APART = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}  # not through MPS: a failing test breaks its own context only
STAGES = "pretrained,translation,train,profile,rates,listops,text,pathfinder"
ALONE = {"speed": 500.0, "train": 420.0, "profile": 150.0, "compare": 360.0}
"""Stages that are timed, and seconds they may take."""
AT_ONCE = ("matched", "translation", "pretrained", "ablations")
"""Stages that launch little: they begin beside the tests."""
TESTS = {
    "training": ["tests/training"],
    "rivals": ["tests/rivals", "tests/compare"],
    "models": ["tests/models", "tests/bench", "tests/cli"],
    "ops": ["tests/ops"],
}
TOGETHER = 3
"""Other stages at a time, each a queue of JOBS jobs."""
JOBS = 3
MANY = 6
"""Jobs of a stage that launches little: it waits for the processors, and the GPU has room."""
PATIENCE = 25.0  # seconds in which runs save a checkpoint
LOOK = 0.5
KEPT = ("*.json", "*.jsonl", "*.toml", "*.md", "*.png", "*.log", "*.txt", "*.parallel")
LEFT = {"tokenizer.json"}
WITHOUT = ("data-cache", "best", "checkpoint-")  # folders that are nothing without their weights


@dataclass(slots=True)
class Task:
    """A process in a session of its own; what it says goes to its log."""

    name: str
    command: list[str]
    limit: float = 3_600
    environment: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    begin: float = 0.0

    def start(self) -> "Task":
        with (LOGS / f"{self.name}.log").open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env={**os.environ, "PYTHON": sys.executable, "PYTHONUNBUFFERED": "1", **self.environment},
            )  # fmt: skip
        self.begin = time.monotonic()
        tell(f"{self.name}: started")
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def code(self) -> int | None:
        """None while it runs. Past its limit it is killed with all it started: it may be deaf to a polite word."""
        assert self.process is not None
        if self.process.poll() is None and time.monotonic() - self.begin > self.limit:
            tell(f"{self.name}: past its {self.limit:.0f} s")
            send([self.pid, *descendants(self.pid)], signal.SIGKILL)
            self.process.wait()
        return self.process.poll()

    def wait(self) -> int:
        while (code := self.code()) is None:
            time.sleep(LOOK)
        tell(f"{self.name}: ended with {code} after {time.monotonic() - self.begin:.0f} s: {last_line(self.name)}")
        return code


def tell(words: str) -> None:
    with STORY.open("a") as file:
        print(f"[{time.strftime('%H:%M:%S')}] {words}", file=file)


def last_line(name: str) -> str:
    lines = (LOGS / f"{name}.log").read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[-160:]


def children() -> dict[int, list[int]]:
    """Of every process; also those in sessions of their own, as jobs of a queue are."""
    found: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    return found


def descendants(pid: int) -> list[int]:
    below = children()
    found = list(below.get(pid, []))
    for child in found:
        found.extend(below.get(child, []))
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def go(data: str, minutes: float, stages: list[str], tests: list[str]) -> None:
    """The whole plan; see the head of this file."""
    end = time.monotonic() + 60 * minutes
    under_way = [stage(name, data, MANY).start() for name in stages if name in AT_ONCE]
    timed = [name for name in stages if name in ALONE]
    beside = [*(graphs_test() if tests else []), *([warming()] if "train" in timed else [])]
    codes = {task.name: task.start() for task in beside}
    codes = {name: task.wait() for name, task in codes.items()}
    if timed:
        held = [pid for task in under_way for pid in [task.pid, *descendants(task.pid)]]
        send(held, signal.SIGSTOP)
        tell("alone: everything else is stopped")
        for task in [task for name in timed for task in alone(name, data)]:
            task.start().wait()
        send(held, signal.SIGCONT)
        tell("side by side again")

    graphs = {} if codes.get("tests-graphs", 0) in (0, 5) else {"EXTRA": "train.compile=on"}  # 5: there is no such test
    waiting = [stage(name, data, JOBS, **graphs) for name in stages if name not in AT_ONCE and name not in ALONE]
    begun: list[Task] = []
    checks = [task.start() for task in gpu_tests(tests)]
    while time.monotonic() < end - PATIENCE:
        tested = [task.code() is not None for task in checks]  # looks at their limits, too
        if waiting and sum(task.code() is None for task in begun) < TOGETHER:
            begun.append(waiting.pop(0).start())
        elif not waiting and all(tested) and all(task.code() is not None for task in under_way + begun):
            break
        time.sleep(LOOK)
    below, under_way = children(), under_way + begun
    for task in under_way:
        if task.code() is None:
            tell(f"{task.name}: time is up")
            send(below.get(task.pid, []), signal.SIGTERM)  # to the queue alone: it ends its jobs
    patience = time.monotonic() + PATIENCE
    while any(task.code() is None for task in under_way) and time.monotonic() < patience:
        time.sleep(LOOK)
    for task in under_way + checks:
        task.limit = 0  # by now
        tell(f"{task.name}: ended with {task.code()}: {last_line(task.name)}")
    for task in waiting:
        tell(f"{task.name}: no time was left")
    tell("done")


def known_stages() -> list[str]:
    return re.findall(r"^(\w+)\)$", (HERE / "make.sh").read_text(), re.MULTILINE)


def stage(given: str, data: str, jobs: int, **environment: str) -> Task:
    """NAME, or NAME=ATTENTION+ATTENTION for some attentions of the arena."""
    name, _, attentions = given.partition("=")
    if attentions:
        environment["ATTENTIONS"] = attentions.replace("+", ",")
    own = {"JOBS": str(jobs), **FILES, **environment}
    return Task(given, ["bash", str(HERE / "make.sh"), name, data], environment=own)


def pytest(name: str, limit: float, *words: str) -> Task:
    how = ["-m", "gpu", "-v", "--tb=short", "-p", "no:cacheprovider"]
    return Task(f"tests-{name}", [sys.executable, "-m", "pytest", *words, *how], limit, APART)


def graphs_test() -> list[Task]:
    """The one that tells whether the arena may replay its steps."""
    return [pytest("graphs", 200, "tests/training", "-k", "graphs and lra-image and cosformer")]


def gpu_tests(names: list[str]) -> list[Task]:
    return [pytest(name, 900, *TESTS[name]) for name in names]


def cosformer(*words: str) -> list[str]:
    return [sys.executable, "-m", "cosformer.cli.main", *words]


def warming() -> Task:
    """Fills the compiler's cache with the larger model, so that timing it does not wait for that. (The smaller one
    compiles faster, and there is no room for both at once.)"""
    once = cosformer("bench", "train", "--device", "cuda", "--preset", "350m", "--steps", "1", "--repeats", "1")
    return Task("warm", [*once, "--lengths", "8192", "--attentions", "cosformer,softmax"], 280, APART)


def alone(name: str, data: str) -> list[Task]:
    """A stage that is timed; with that of training, a run whose run.json tells what reading data and logging cost."""
    timed = stage(name, data, 1, **APART)
    timed.limit = ALONE[name]
    if name != "train":
        return [timed]
    wide = (
        "model.hidden_size=512", "model.num_hidden_layers=8", "model.num_attention_heads=8", "data.length=2048",
        "train.batch=64", "train.steps=300", "eval.every=300", "train.save_every=300",
    )  # fmt: skip
    told = [word for one in wide for word in ("--set", one)]
    lone = cosformer("train", "lm-stdlib", "--device", "cuda", "--quiet", "--out", str(RUNS / "lone"), *told)
    return [timed, Task("lone", lone, 120, APART)]


def look(seconds: float) -> None:
    end, told = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        text = STORY.read_text() if STORY.is_file() else ""
        print(text[told:], end="", flush=True)
        told = len(text)
        if text.endswith("done\n"):
            break
        time.sleep(LOOK)
    for log in sorted([*RUNS.glob("*/logs/*.log"), *LOGS.glob("*.log")]):
        lines = log.read_text(errors="replace").splitlines()
        print(f"{log.parent.parent.name}/{log.stem}: {lines[-1][-120:] if lines else ''}")


def gather(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    roots = (RUNS, Path("results"), Path("docs/figures"))
    found = {path for root in roots for kind in KEPT for path in root.rglob(kind)}
    found = {
        path for path in found
        if path.name not in LEFT and not any(part.startswith(WITHOUT) for part in path.parent.parts)
    }  # fmt: skip
    with tarfile.open(folder / "rented.tgz", "w:gz") as archive:
        for path in sorted(found):
            archive.add(path)
    print(f"{len(found)} files in {folder / 'rented.tgz'}")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = words.add_subparsers(dest="verb", required=True)
    for name, where in (("start", "in the background"), ("go", "here")):
        verb = verbs.add_parser(name, help=where)
        verb.add_argument("data")
        verb.add_argument("--minutes", type=float, default=26)
        verb.add_argument("--stages", default=STAGES, help=f"of make.sh ({STAGES}); text=linear+rfa: with these")
        verb.add_argument("--tests", default=",".join(TESTS), help="of the GPU, with commas; '' for none")
    verbs.add_parser("look").add_argument("seconds", type=float)
    verbs.add_parser("gather").add_argument("folder", type=Path)
    given = words.parse_args()
    names = {name.partition("=")[0] for name in getattr(given, "stages", STAGES).split(",")}
    if unknown := sorted(names - set(known_stages())):
        words.error(f"make.sh has no stage {', '.join(unknown)}: there are {', '.join(known_stages())}")
    if unknown := sorted({name for name in getattr(given, "tests", "").split(",") if name} - set(TESTS)):
        words.error(f"there are no tests {', '.join(unknown)}: use some of {', '.join(TESTS)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    if given.verb == "look":
        look(given.seconds)
    elif given.verb == "gather":
        gather(given.folder)
    elif given.verb == "go":
        go(given.data, given.minutes, given.stages.split(","), [name for name in given.tests.split(",") if name])
    else:
        tell(f"the plan of {given.minutes:g} minutes: {given.stages}")  # before `look`: the last plan ended with «done»
        again = [sys.executable, __file__, "go", *sys.argv[2:]]
        with (LOGS / "plan.log").open("ab") as out:
            subprocess.Popen(again, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        print("started; now: python results/rented.py look SECONDS")


if __name__ == "__main__":
    main()
