"""One attention, measured in a process of its own, which is forked from a nursery: this module, run as a program.

The nursery imports, then forks as it is told. Both are asked by lines of JSON on a socket and answer by such lines;
what goes wrong is an answer, what kills a process is seen by the one who asks. Both end when the one who asks is gone.
"""

import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cosformer.bench.clock import clock_for
from cosformer.bench.gate import gate_attention
from cosformer.bench.systems import in_words
from cosformer.bench.timing import keep_freed_memory, once
from cosformer.compare import host_memory
from cosformer.compare.process import read_line
from cosformer.compare.settings import Sweep, known

MOST_SAMPLES = 7  # of a visit
LONG_MS = 1_000  # a call this long needs no warm-up before each of its samples
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory", "out of memory")


class Measurer:
    def __init__(self, sweep: Sweep, attention: str) -> None:
        self.sweep, self.attention, self.device = sweep, attention, torch.device(sweep.device)
        self.on_cuda = self.device.type == "cuda"
        if self.on_cuda:
            torch.cuda.set_device(self.device)
            if sweep.memory_gib is not None:
                total = torch.cuda.get_device_properties(self.device).total_memory
                torch.cuda.set_per_process_memory_fraction(min(1.0, sweep.memory_gib * 2**30 / total), self.device)
        else:
            keep_freed_memory()
        self.clock = clock_for(self.device)
        self.gated = self.warm = False

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Samples in ms and, at the first visit, bytes; or a state that is not "measured", and why."""
        if not self.on_cuda:
            given = self.sweep.memory_gib
            host_memory.limit(None if given is None else int(given * 2**30))
        try:
            self._gate()
            return self._visit(**asked)
        except Wrong as wrong:
            return {"state": "wrong", "why": str(wrong)}
        except torch.AcceleratorError as error:  # the device is lost for this process: the next cell gets a new one
            return {"state": "failed", "why": in_words(error), "gone": True}
        except Exception as error:
            if _is_memory(error):
                return {"state": "out of memory", "why": ""}
            return {"state": "failed", "why": in_words(error)}
        finally:
            gc.collect()
            self.clock.clear()
            if not self.on_cuda:
                host_memory.give_back()

    def _gate(self) -> None:
        """Our own operator against the definition in float64, once; others are tested where they are defined."""
        if self.gated or self.attention != "cosformer":
            return
        try:
            gate_attention(device=str(self.device), dtype=self.sweep.dtype, width=self.sweep.width, backend="auto")
        except RuntimeError as error:
            if _is_memory(error):
                raise
            raise Wrong(str(error)) from error
        self.gated = True

    def _visit(self, mode: str, work: str, length: int, first: bool, about_ms: float | None) -> dict[str, Any]:
        run, limit_ms = call(self.sweep, self.attention, mode, work, length), self.sweep.limit_s * 1e3
        found: dict[str, Any] = {"state": "measured", "why": "", "memory_bytes": None}
        if first:
            spent = self._look(run, found)
            if limit_ms < spent and (self.on_cuda or spent < 10 * limit_ms):
                spent = once(run, self.device)  # kernels may have been built before; on a GPU that takes long
        elif about_ms is not None and about_ms > LONG_MS:
            spent = about_ms
        else:
            spent = once(run, self.device)
        if spent > limit_ms:
            why = f"a call took {spent / 1e3:.1f} s, and the limit is {self.sweep.limit_s:g} s"
            return {"state": "slow", "why": why}
        count = max(1, min(MOST_SAMPLES, int(self.sweep.sample_s * 1e3 / max(spent, 1e-3))))
        if self.on_cuda:
            samples = self.clock.time(run, repeats=count, budget_s=self.sweep.sample_s).ms
        else:
            samples = [once(run, self.device) for _ in range(count)]
        return found | {"samples": [float(f"{ms:.4g}") for ms in samples]}

    def _look(self, run: Callable[[], tuple[Tensor, ...]], found: dict[str, Any]) -> float:
        """The first call of a cell, in ms: its memory, and whether what comes out is finite."""
        if not self.warm:  # what a process sets up once is not the attention's
            run()
            self.warm = True
        results: list[Tensor] = []
        spent = once(lambda: found.update(memory_bytes=self._peak(lambda: results.extend(run()))), self.device)
        if not all(bool(x.isfinite().all()) for x in results):
            raise Wrong("its output or a gradient is not finite: what is wrong is not timed")
        return spent

    def _peak(self, run: Callable[[], object]) -> int | None:
        return self.clock.peak(run) if self.on_cuda else host_memory.peak(run)


def _is_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(x in str(error) for x in OUT_OF_MEMORY)


class Wrong(Exception):
    """It can, but what comes out is not right."""


def config_for(sweep: Sweep, attention: str, mode: str, length: int) -> Any:
    """A model of one block; ValueError where the attention cannot do this."""
    from cosformer.models import CosformerConfig

    return CosformerConfig(
        hidden_size=sweep.heads * sweep.width, num_attention_heads=sweep.heads, num_hidden_layers=1,
        attention=attention, causal=mode == "causal", horizon=length, positions="none",
    )  # fmt: skip


def call(sweep: Sweep, attention: str, mode: str, work: str, length: int) -> Callable[[], tuple[Tensor, ...]]:
    """What is timed: the kind as a block of a model calls it, between its projections, options at their defaults."""
    from cosformer.models import KINDS
    from cosformer.models.layout import Layout

    config = config_for(sweep, attention, mode, length)
    torch.manual_seed(0)
    kind = KINDS[attention](config, 0, causal=mode == "causal").to(sweep.device)
    shape = (sweep.batch(length), sweep.heads, length, sweep.width)
    draw = torch.Generator(sweep.device).manual_seed(0)
    q, k, v = (torch.randn(shape, generator=draw, device=sweep.device, dtype=sweep.dtype) for _ in range(3))
    layout = Layout()
    if work == "forward":
        kind.eval()

        def forward() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (kind.attend(q, k, v, layout, None),)

        return forward
    g = torch.randn(shape, generator=draw, device=sweep.device, dtype=sweep.dtype)
    leaves = (*(x.requires_grad_() for x in (q, k, v)), *kind.parameters())
    kind.train()

    def training() -> tuple[Tensor, ...]:
        return torch.autograd.grad(kind.attend(q, k, v, layout, None), leaves, g, materialize_grads=True)

    return training


def serve(sweep: Sweep, attention: str, line: socket.socket, said: str) -> None:
    """In the forked process: answers until nobody asks any more."""
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    measurer = Measurer(sweep, attention)
    with contextlib.suppress(ConnectionError):
        while question := read_line(line):
            answer = measurer.answer(json.loads(question))
            line.sendall(json.dumps(answer).encode() + b"\n")
            if answer.get("gone"):
                return


def main(number: str, folder: str, *imports: str) -> None:
    """The nursery. It must not compute anything itself: threads of a library do not survive a fork.

    number: of the open file that is the line to the one who asks. folder: of what processes print; removed when nobody
    asks any more.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks decides
    asker = socket.socket(fileno=int(number))

    def say(answer: dict[str, Any]) -> None:
        asker.sendall(json.dumps(answer).encode() + b"\n")

    known(imports)
    gc.collect()
    gc.freeze()  # what is imported stays: a collection after each cell need not look at it
    say({"state": "ready"})
    while True:
        question, lines, _, _ = socket.recv_fds(asker, 65_536, 1)
        while question and not question.endswith(b"\n"):
            question += asker.recv(65_536)
        if not question:
            break
        asked = json.loads(question)
        if "reap" in asked:
            say({"status": os.waitstatus_to_exitcode(os.waitpid(asked["reap"], 0)[1])})
            continue
        pid = os.fork()
        if pid:
            os.close(lines[0])
            say({"pid": pid})
            continue
        status = 1
        try:
            asker.close()
            with socket.socket(fileno=lines[0]) as line:
                serve(Sweep.from_json(asked["settings"]), asked["fork"], line, asked["said"])
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)  # nothing of the nursery is this process's to clean up
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
