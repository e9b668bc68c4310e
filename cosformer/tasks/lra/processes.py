"""Blocks of examples made in several processes and given in order. The processes import no torch."""

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from cosformer.tasks.shards.workers import PACKAGE, Worker, WorkerDied, _answer

Made = list[tuple[str, int]]
"""Texts and labels."""
# The packages above are made by hand, because importing them would import torch
PROGRAM = """
import sys, types
for name, path in (("cosformer", {package!r}), ("cosformer.tasks", {tasks!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from cosformer.tasks.lra.processes import serve
serve()
""".format(package=str(PACKAGE), tasks=str(PACKAGE / "tasks"))


class Maker(Protocol):
    """Makes examples; which ones depends on split and index alone. It is pickled to reach other processes."""

    def make(self, split: str, start: int, stop: int) -> Made:
        """Examples start … stop − 1."""
        ...


class MakingWorker(Worker):
    """A process that makes examples."""

    def __init__(self, maker: Maker) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            start_new_session=True,  # Ctrl-C is for the parent, which then stops its workers
        )  # fmt: skip
        try:
            self.ask(maker)
        except BaseException:
            self.stop(now=True)  # nobody has it yet who could
            raise

    def ask(self, task: Any) -> Any:
        try:
            return super().ask(task)
        except WorkerDied as error:
            how = f"exit status {self.process.returncode}, a signal where negative"
            raise WorkerDied(
                f"a worker that makes examples ended ({how}): was memory short? Open the source with fewer workers; "
                "finished shards are kept"
            ) from error


def made_in_order(maker: Maker, split: str, count: int, *, block: int, workers: int) -> Iterator[tuple[str, int]]:
    """Examples 0 … count − 1, in blocks, `workers` at a time; in this process where fewer than two would work."""
    blocks = [(start, min(start + block, count)) for start in range(0, count, block)]
    workers = min(workers, len(blocks))
    if workers < 2:
        for start, stop in blocks:
            yield from maker.make(split, start, stop)
        return
    mine = threading.local()
    started: list[MakingWorker] = []
    threads = ThreadPoolExecutor(workers, thread_name_prefix="make")

    def run(start: int, stop: int) -> Made:
        if not hasattr(mine, "worker"):
            mine.worker = MakingWorker(maker)
            started.append(mine.worker)
        return mine.worker.ask((split, start, stop))

    waiting: deque[Future[Made]] = deque()
    finished = False
    try:
        for start, stop in blocks:
            waiting.append(threads.submit(run, start, stop))
            if len(waiting) > 2 * workers:  # ahead of the reader, but not by much
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
        finished = True
    finally:  # also where the reader stops early
        if not finished:
            for worker in started:
                worker.process.kill()
        threads.shutdown(cancel_futures=True)
        for worker in started:
            worker.stop(now=not finished)


def serve() -> None:
    """A worker's life: the maker, then a block per task until the input ends."""
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not reach the answers
    maker: Maker = pickle.load(tasks)
    _answer(answers, None)
    while True:
        try:
            split, start, stop = pickle.load(tasks)
        except EOFError:
            return
        try:
            found: Any = maker.make(split, start, stop)
        except Exception as error:
            found = error
        _answer(answers, found)
