"""Processes that measure, one for each attention: started, asked, ended; what became of them in words.

They are forked from one process, the nursery, which has imported everything and done nothing: a start takes no time,
and the pages of torch are shared.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cosformer.compare.settings import Sweep

MODULE = "cosformer.compare.measure"


class Died(Exception):
    """The process ended without an answer."""


class Late(Exception):
    """No answer in time; the process was ended."""


class Nursery:
    """Forks a measuring process for any attention; knows how each ended. imports: modules that register attentions."""

    def __init__(self, imports: tuple[str, ...] = ()) -> None:
        if not hasattr(os, "fork"):
            raise RuntimeError("attentions are measured in forked processes, and this system has none: use Linux")
        self.folder = Path(tempfile.mkdtemp(prefix="cosformer-"))
        root = str(Path(__file__).resolve().parents[2])  # the package may not be installed
        path = os.pathsep.join(x for x in (root, os.environ.get("PYTHONPATH")) if x)
        self._said = (self.folder / "nursery").open("w+", errors="replace")
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), str(self.folder), *imports],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said,
                env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip
        try:
            self._heard()
        except BaseException:
            self.close()
            raise

    def fork(self, attention: str, sweep: Sweep) -> tuple[int, socket.socket]:
        """The number of the new process and the line to it."""
        question = {"fork": attention, "settings": sweep.to_json(), "said": str(self.said(attention))}
        line, theirs = socket.socketpair()
        try:
            with theirs:
                return self._ask(question, theirs.fileno())["pid"], line
        except BaseException:
            line.close()
            raise

    def ended(self, pid: int, attention: str) -> str:
        """Waits until the process is gone; how it ended, in words."""
        status = self._ask({"reap": pid})["status"]
        if status >= 0:
            said = self.said(attention)
            last = (said.read_text(errors="replace").strip().splitlines() or [""])[-1] if said.is_file() else ""
            return f"the process ended with status {status}" + (f": {last.strip()}" if last else "")
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        hint = ", most often because memory ran out" if name == "SIGKILL" else ""
        return f"the process was ended by {name}{hint}"

    def said(self, attention: str) -> Path:
        """What the process printed."""
        return self.folder / f"{attention}.said"

    def close(self) -> None:
        self._line.close()
        self._process.kill()
        self._process.wait()
        self._said.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, question: dict[str, Any], *lines: int) -> dict[str, Any]:
        """lines: numbers of open files to hand over."""
        with contextlib.suppress(ConnectionError):  # then there is no answer either
            socket.send_fds(self._line, [json.dumps(question).encode() + b"\n"], lines)
        return self._heard()

    def _heard(self) -> dict[str, Any]:
        """It only waits for imports, forks and deaths, so an answer comes; unless it is gone itself."""
        with contextlib.suppress(ConnectionError):
            if line := read_line(self._line):
                return json.loads(line)
        status = self._process.wait()
        self._said.seek(0)
        last = (self._said.read().strip().splitlines() or ["nothing"])[-1]
        raise RuntimeError(f"the process that starts the measuring ones ended with status {status}: {last}")


class Measuring:
    """One attention's process; begun when it is first asked, and again after it died."""

    def __init__(self, nursery: Nursery, sweep: Sweep, attention: str) -> None:
        self.nursery, self.sweep, self.attention = nursery, sweep, attention
        self._pid, self._line = 0, None

    def ask(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Raises Died or Late where no answer comes."""
        if self._line is None:
            self._pid, self._line = self.nursery.fork(self.attention, self.sweep)
        self._line.settimeout(timeout_s)
        try:
            self._line.sendall(json.dumps(question).encode() + b"\n")
            line = read_line(self._line)
        except TimeoutError:
            self.close()
            raise Late(f"no answer in {timeout_s:.0f} s") from None
        except ConnectionError:
            line = b""
        if not line:
            self._line.close()
            self._line = None
            raise Died(self.nursery.ended(self._pid, self.attention))
        answer = json.loads(line)
        if answer.get("gone"):
            self.close()
        return answer

    def close(self) -> None:
        """Ends it, whatever it does."""
        if self._line is None:
            return
        self._line.close()
        self._line = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(RuntimeError):  # the nursery may be gone
            self.nursery.ended(self._pid, self.attention)


def read_line(line: socket.socket) -> bytes:
    """What was said, to its end; empty where nobody is there any more. Nothing is said before it is asked for."""
    found = b""
    while not found.endswith(b"\n"):
        part = line.recv(65_536)
        if not part:
            return b""
        found += part
    return found
