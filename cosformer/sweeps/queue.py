"""Runs jobs, each in a process of its own, some at a time. What is done stays done: started again, the rest follows."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from cosformer.bench.environment import COMMAND_VARIABLE, command
from cosformer.sweeps.jobs import QUEUE, Job, check_names, check_same_jobs, job_file, run_folder
from cosformer.sweeps.outcomes import (
    DONE,
    FAILED,
    INTERRUPTED,
    SKIPPED,
    TAKEN,
    TESTED,
    ended_without,
    outcome_file,
    read_outcome,
)
from cosformer.sweeps.table import collect
from cosformer.tasks.locks import only
from cosformer.tasks.shards.atomic import write_atomically
from cosformer.training.run_folder import SUMMARY, check_writable

LOOK = 0.2  # seconds between looks at the processes
WORDS = 4096  # bytes of a log that are read for its last line


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSettings:
    name: str
    """Of the table."""
    parallel: int = 1
    """Jobs at once. Their steps per second are then those of a shared machine."""
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise ValueError(f"parallel={self.parallel}: at least one job at a time")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device={self.device!r}: use auto, cpu or cuda")
        if self.device == "cuda" and not _gpus():
            raise ValueError("device='cuda', but torch sees no CUDA device: use cpu, or see `cosformer env`")


@dataclass(slots=True)
class Running:
    """A job under way."""

    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    begin: float

    @property
    def last_words(self) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - WORDS))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run_queue(
    folder: Path, jobs: Sequence[Job], settings: QueueSettings, *,
    looked: Callable[[list[Running], int], None] = lambda _, __: None,
    ended: Callable[[Job, dict[str, Any]], None] = lambda _, __: None,
) -> bool:  # fmt: skip
    """Does what is not done yet, keeps `table.json` up to date, and tells whether it came to the end.

    False: interrupted (Ctrl-C); jobs under way have saved a checkpoint. looked: told of the jobs under way and how many
    are left, a few times a second. ended: of each job with its outcome. What failed or was skipped is tried again.
    """
    check_names(jobs)
    check_writable(folder)
    with _only_queue(folder):
        done = done_in(folder, jobs)
        check_same_jobs(folder, jobs, done)
        done -= _gone(folder, jobs, done)
        for job in jobs:
            if job.name in done:
                continue  # its recipe stays as its result was made
            path = job_file(folder, job.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, [job.recipe_in(folder).toml().encode()])
            outcome_file(folder, job.name).unlink(missing_ok=True)
        with _ended_by_term():
            return _Queue(folder, jobs, settings, looked, ended).go()


def done_in(folder: Path, jobs: Iterable[Job]) -> set[str]:
    """Names of those of which the folder has a result."""
    outcomes = ((job.name, read_outcome(folder, job.name)) for job in jobs)
    return {name for name, found in outcomes if found is not None and found["state"] == DONE}


def _gone(folder: Path, jobs: Sequence[Job], done: Collection[str]) -> set[str]:
    """Jobs that are done, whose runs were removed, and from which one that is not done starts: they are done again."""
    found: set[str] = set()
    for job in reversed(jobs):  # a job stands after the one it starts from
        again = job.name not in done or job.name in found
        if again and job.after in done and not (run_folder(folder, job.after) / SUMMARY).is_file():
            found.add(job.after)
    return found


class _Queue:
    def __init__(
        self, folder: Path, jobs: Sequence[Job], settings: QueueSettings,
        looked: Callable[[list[Running], int], None], ended: Callable[[Job, dict[str, Any]], None],
    ) -> None:  # fmt: skip
        self.folder, self.jobs, self.settings, self.looked, self.ended = folder, jobs, settings, looked, ended
        self.waiting = [job for job in jobs if read_outcome(folder, job.name) is None]
        self.running: dict[int, Running] = {}  # by slot
        self.gpus = _gpus() if settings.device != "cpu" else 0

    def go(self) -> bool:
        self._write_table()
        try:
            while self.waiting or self.running:
                self._start()
                self._look()
                self.looked(list(self.running.values()), len(self.waiting))
                if self.running:
                    time.sleep(LOOK)
            return True
        except KeyboardInterrupt:
            self._stop()
            return False
        except BaseException:
            self._stop()
            raise
        finally:
            self._write_table()

    def _start(self) -> None:
        for slot in range(self.settings.parallel):
            if slot not in self.running and (job := self._next()) is not None:
                self.waiting.remove(job)
                log = self.folder / "logs" / f"{job.name}.log"
                log.parent.mkdir(parents=True, exist_ok=True)
                # -P: what lies in the folder the command is given in is not imported in place of a package
                arguments = [sys.executable, "-P", "-m", "cosformer.sweeps.child", str(self.folder), job.name]
                arguments += [self.settings.device, str(os.getpid()), str(self.settings.parallel)]
                arguments += [TESTED] if job.tested else []
                with log.open("ab") as out:
                    process = subprocess.Popen(
                        arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._environment(slot),
                        start_new_session=True,  # Ctrl-C reaches them once
                    )  # fmt: skip
                self.running[slot] = Running(job, process, log, time.monotonic())
                self._write_table()

    def _next(self) -> Job | None:
        """The first whose model to start from is there; those that wait in vain are passed over with the reason."""
        for job in list(self.waiting):
            before = read_outcome(self.folder, job.after) if job.after else {"state": DONE}
            if before is not None and before["state"] == DONE:
                return job
            if before is not None:
                self.waiting.remove(job)
                why = f"{job.after}, which it starts from, {before['state']}: {before['why']}"
                ended_without(self.folder, job.name, SKIPPED, why)
                self._tell(job)
        return None

    def _environment(self, slot: int) -> dict[str, str]:
        found = dict(os.environ)
        root = str(Path(__file__).resolve().parents[2])  # also where the package is not installed
        found["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [found.get("PYTHONPATH")])])
        found["PYTHONUNBUFFERED"] = "1"
        found[COMMAND_VARIABLE] = command()  # what makes the run again is the queue's
        if self.gpus > 1:
            mine = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            own = mine if len(mine) == self.gpus else [str(i) for i in range(self.gpus)]
            found["CUDA_VISIBLE_DEVICES"] = own[slot % self.gpus]
        if self.settings.parallel > 1:  # threads of several jobs would fight for the processors
            share = max(1, (os.cpu_count() or 1) // self.settings.parallel)
            found.setdefault("OMP_NUM_THREADS", str(share))
            found.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(share))  # processes of each job's compiler
        return found

    def _look(self) -> None:
        for slot, running in list(self.running.items()):
            code = running.process.poll()
            if code is None:
                continue
            del self.running[slot]
            job = running.job
            if read_outcome(self.folder, job.name) is None:
                if code == INTERRUPTED:  # by a signal of its own; its checkpoint is there
                    raise KeyboardInterrupt
                ended_without(self.folder, job.name, FAILED, _why(code, running))
            self._tell(job)
            self._write_table()

    def _tell(self, job: Job) -> None:
        found = read_outcome(self.folder, job.name)
        assert found is not None
        self.ended(job, found)

    def _stop(self) -> None:
        """Jobs end after the step under way, with a checkpoint."""
        for running in self.running.values():
            running.process.terminate()
        for running in self.running.values():
            running.process.wait()

    def _write_table(self) -> None:
        now = {one.job.name for one in self.running.values() if one.process.poll() is None}
        collect(self.folder, self.jobs, name=self.settings.name, parallel=self.settings.parallel, running=now)


def _why(code: int, running: Running) -> str:
    if code == TAKEN:
        return "another process is at this job: wait for it, or end it"
    if code < 0:
        hint = " (the system does so when memory runs out)" if code == -9 else ""
        return f"killed by signal {-code}{hint}"
    return f"ended with code {code}: {running.last_words}"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """SIGTERM as Ctrl-C: its default would take the jobs along without a checkpoint."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: signals are someone else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _only_queue(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(only(folder / QUEUE))
        except BlockingIOError:
            raise ValueError(
                f"a queue is running in {folder}: wait for it, or name another folder with --out"
            ) from None
        yield
