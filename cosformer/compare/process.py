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

START_S = 180.0
"""Longest start of the nursery: imports, perhaps on a busy machine."""
FORK_S = 30.0
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
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *imports], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, text=True, env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        self._heard()

    def fork(self, attention: str, sweep: Sweep) -> tuple[int, socket.socket]:
        """The number of the new process and the line to it."""
        question = {"fork": attention, "settings": sweep.to_json(), "said": str(self.said(attention))}
        place = self.folder / f"{attention}.socket"
        with socket.socket(socket.AF_UNIX) as door:
            place.unlink(missing_ok=True)
            door.bind(str(place))
            door.listen(1)
            door.settimeout(FORK_S)
            pid = self._ask(question | {"line": str(place)})["pid"]
            try:
                line, _ = door.accept()
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise Died(f"it did not begin in {FORK_S:.0f} s; {self.ended(pid, attention)}") from None
        return pid, line

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
        self._process.kill()
        self._process.communicate()
        self._said.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._heard()

    def _heard(self) -> dict[str, Any]:
        """It only waits for imports, forks and deaths, so an answer comes; unless it is gone itself."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        status = self._process.wait()
        self._said.seek(0)
        last = (self._said.read().strip().splitlines() or ["nothing"])[-1]
        raise RuntimeError(f"the process that starts the measuring ones ended with status {status}: {last}")


class Measuring:
    """One attention's process; begun when it is first asked, and again after it died."""

    def __init__(self, nursery: Nursery, sweep: Sweep, attention: str) -> None:
        self.nursery, self.sweep, self.attention = nursery, sweep, attention
        self._pid, self._line, self._rest = 0, None, b""

    def ask(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Raises Died or Late where no answer comes."""
        if self._line is None:
            self._pid, self._line = self.nursery.fork(self.attention, self.sweep)
            self._rest = b""
        self._line.settimeout(timeout_s)
        try:
            self._line.sendall(json.dumps(question).encode() + b"\n")
            answer = json.loads(self._read(self._line))
        except TimeoutError:
            self.close()
            raise Late(f"no answer in {timeout_s:.0f} s") from None
        except (ConnectionError, EOFError):
            self._line.close()
            self._line = None
            raise Died(self.nursery.ended(self._pid, self.attention)) from None
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

    def _read(self, line: socket.socket) -> bytes:
        while b"\n" not in self._rest:
            part = line.recv(65_536)
            if not part:
                raise EOFError
            self._rest += part
        first, _, self._rest = self._rest.partition(b"\n")
        return first
