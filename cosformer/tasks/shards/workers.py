"""Worker processes that turn batches of text into shards.

Plain subprocesses that read tasks from their standard input: when their parent is killed it ends, and so do they.
They import numpy and `tokenizers`, not torch: a worker is about 60 MB, and starts in a fifth of a second.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from cosformer.tasks.encoders import Encoder
from cosformer.tasks.shards.building import Batch, Marks, build_shard
from cosformer.tasks.shards.format import ShardRecord

PACKAGE = Path(__file__).parents[2]
# The package and cosformer.tasks are made by hand, because importing them would import torch
PROGRAM = """
import sys, types
for name, path in (("cosformer", {package!r}), ("cosformer.tasks", {tasks!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from cosformer.tasks.shards.workers import serve
serve()
""".format(package=str(PACKAGE), tasks=str(PACKAGE / "tasks"))


class WorkerDied(RuntimeError):
    """A worker process ended before it answered."""


class Worker:
    """One process and the pipe to it."""

    def __init__(self, settings: tuple[Encoder, str, Marks]) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "TOKENIZERS_PARALLELISM": "false",  # the processes are the parallelism
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            start_new_session=True,  # Ctrl-C is for the parent, which then stops its workers
        )  # fmt: skip
        self.ask(settings)

    def ask(self, task: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            pickle.dump(task, self.process.stdin, protocol=5)
            self.process.stdin.flush()
            answer = pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError, ValueError) as error:
            code = self.process.wait()
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            raise WorkerDied(
                f"a worker that tokenises ended ({how}): was memory short? Prepare again with fewer workers; finished "
                "shards are kept"
            ) from error
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stop(self, *, now: bool) -> None:
        if now:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.process.wait()


class WorkerPool:
    """At most `count` processes, each started when it is first needed."""

    def __init__(self, count: int, encoder: Encoder, fingerprint: str, marks: Marks) -> None:
        self._settings = (encoder, fingerprint, marks)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="tokenise")
        self._mine = threading.local()
        self._workers: list[Worker] = []

    def submit(self, path: Path, batch: Batch, digest: str) -> "Future[ShardRecord]":
        return self._threads.submit(self._run, path, batch, digest)

    def _run(self, path: Path, batch: Batch, digest: str) -> ShardRecord:
        if not hasattr(self._mine, "worker"):
            self._mine.worker = Worker(self._settings)
            self._workers.append(self._mine.worker)
        return self._mine.worker.ask((path, batch, digest))

    def close(self, *, now: bool = False) -> None:
        """now: without waiting for tasks that run."""
        if now:
            for worker in self._workers:
                worker.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.stop(now=now)


def serve() -> None:
    """A worker's life: settings, then a shard per task until the input ends."""
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not reach the answers
    encoder, fingerprint, marks = pickle.load(tasks)
    _answer(answers, None)
    while True:
        try:
            path, batch, digest = pickle.load(tasks)
        except EOFError:
            return
        try:
            found: Any = build_shard(path, batch, digest, encoder, fingerprint, marks)
        except Exception as error:
            found = error
        _answer(answers, found)


def _answer(answers: Any, found: Any) -> None:
    try:
        data = pickle.dumps(found)
        pickle.loads(data)
    except Exception:  # an error that does not travel is told in words
        data = pickle.dumps(RuntimeError(f"{type(found).__name__}: {found}"))
    answers.write(data)
    answers.flush()


def runs_elsewhere(encoder: Encoder) -> bool:
    """Whether a worker can have it: one of ours, since a worker has only this part of the package."""
    module: ModuleType | None = sys.modules.get(type(encoder).__module__)
    return module is not None and module.__name__.startswith("cosformer.tasks.")
