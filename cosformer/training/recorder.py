"""What a run tells: metrics.jsonl, TensorBoard, and whoever watches."""

import contextlib
import ctypes
import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cosformer.tasks import Progress
from cosformer.tasks.shards.atomic import write_atomically

METRICS = "metrics.jsonl"


class Watch:
    """Told of everything as it happens; the command line draws it. All of it may be left out."""

    def said(self, words: str) -> None: ...

    def preparing(self, progress: Progress) -> None: ...

    def starting(self, facts: dict[str, Any]) -> None: ...

    def line(self, line: dict[str, Any]) -> None:
        """A line of metrics.jsonl."""

    def stopped(self) -> None:
        """No more lines: whatever was drawn is finished."""


@dataclass(slots=True)
class Tally:
    """What a run has used so far; goes on over interruptions."""

    tokens: int = 0
    seconds: float = 0.0
    """Of training: without evaluation, samples and checkpoints."""
    waiting: float = 0.0
    """Of these, waiting for data."""
    logging: float = 0.0
    """Of these, writing metrics and drawing progress."""
    evaluating: float = 0.0
    saving: float = 0.0

    def table(self) -> dict[str, Any]:
        return asdict(self)


class Recorder:
    """Writes on the first process; on others it does nothing."""

    def __init__(self, run: Path, *, step: int, writes: bool, watch: Watch) -> None:
        self.run, self.writes, self.watch = run, writes, watch
        self.board: Any = None
        if not writes:
            return
        cut_after(run / METRICS, step)
        self.file = (run / METRICS).open("a", encoding="utf-8")
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            watch.said("no TensorBoard logs: tensorboard is not installed (pip install 'cosformer[train]')")
        else:
            self.board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, kind: str, step: int, **values: Any) -> None:
        line = {"kind": kind, "step": step, **values}
        if not self.writes:
            return
        self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.file.flush()
        if self.board is not None:
            self._board(kind, step, line)
        self.watch.line(line)

    def _board(self, kind: str, step: int, line: dict[str, Any]) -> None:
        if kind == "sample":
            prompt = line["prompt"].replace("\n", "\n> ")
            self.board.add_text("sample", f"> {prompt}\n\n{line['text']}", step)  # Markdown: what was given as a quote
        elif kind in ("train", "eval"):
            for name, value in line.items():
                if isinstance(value, int | float) and name not in ("step", "kind"):
                    self.board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        if self.writes:
            os.fsync(self.file.fileno())
            self.file.close()
            if self.board is not None:
                self.board.close()


def cut_after(path: Path, step: int) -> None:
    """Drops lines past a step, and a last one that was cut short: what is done again is told again."""
    if not path.exists():
        return
    kept = []
    for raw in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if line["step"] <= step and not (step == 0 and line["kind"] != "event"):
            kept.append(raw)
    write_atomically(path, [("".join(f"{raw}\n" for raw in kept)).encode()])


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run that may still be running: a last one that is not finished is left out."""
    found = []
    for raw in (run / METRICS).read_text(encoding="utf-8").split("\n")[:-1]:
        found.append(json.loads(raw))
    return found


def memory_bytes(device: torch.device) -> int:
    """Most memory so far: of the GPU where there is one, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def restart_peak() -> None:
    """Of resident memory, where the system can: from here on, what came before does not count."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back first; glibc's alone
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class Stopwatch:
    """Adds the time of a block to a field of the tally."""

    def __init__(self, tally: Tally, field: str) -> None:
        self.tally, self.field = tally, field

    def __enter__(self) -> None:
        self.begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        setattr(self.tally, self.field, getattr(self.tally, self.field) + time.perf_counter() - self.begin)
