"""A process that measures one attention: started, asked, ended; what became of it in words."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from cosformer.compare.settings import Sweep

START_S = 180.0
"""Longest start: imports, on a machine where others start at the same time."""
MODULE = "cosformer.compare.measure"


class Died(Exception):
    """The process ended without an answer."""


class Late(Exception):
    """No answer in time; the process was ended."""


class Measuring:
    def __init__(self, sweep: Sweep, attention: str) -> None:
        self.settings, self.attention = json.dumps(sweep.to_json()), attention
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._ready = False

    def start(self) -> None:
        """Starts it where it does not run; does not wait for it."""
        if self._process is not None:
            return
        root = str(Path(__file__).resolve().parents[2])  # the package may not be installed
        path = os.pathsep.join(x for x in (root, os.environ.get("PYTHONPATH")) if x)
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (closed in `close`)
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, self.settings, self.attention], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._said, text=True, env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        self._answers, self._ready = queue.Queue(), False
        threading.Thread(target=_listen, args=(self._process, self._answers), daemon=True).start()

    def wait_until_ready(self) -> None:
        self.start()
        if not self._ready:
            self._answer(START_S)
            self._ready = True

    def ask(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.wait_until_ready()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError:
            self._fail()
        answer = self._answer(timeout_s)
        if answer.get("gone"):
            self.close()
        return answer

    def close(self) -> None:
        """Ends it, whatever it does."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # a question that nobody read
                    continue
        self._said.close()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise Late(f"no answer in {timeout_s:.0f} s") from None
        if line is None:
            self._fail()
            raise AssertionError
        return json.loads(line)

    def _fail(self) -> None:
        """Raises with how the process ended."""
        assert self._process is not None
        status = self._process.wait()
        self._said.seek(0)
        last = (self._said.read().strip().splitlines() or [""])[-1].strip()
        self.close()
        if status >= 0:
            raise Died(f"the process ended with status {status}" + (f": {last}" if last else ""))
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        hint = ", most often because memory ran out" if name == "SIGKILL" else ""
        raise Died(f"the process was ended by {name}{hint}")


def _listen(process: "subprocess.Popen[str]", answers: "queue.Queue[str | None]") -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            answers.put(line)
    except ValueError:  # closed while it was read
        pass
    answers.put(None)
