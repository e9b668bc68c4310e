"""`bench attention` on CUDA: every system at every length, forward and with gradients, against the floor.

All shapes are warmed before any is timed; then two runs over everything. A system that refuses or runs out of memory is
a cell with the reason.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cosformer.bench.attention import AttentionBench
from cosformer.bench.clock import Clock, Samples
from cosformer.bench.floor import TRAINING_FLOPS, Rates, copy_rate, floor_bytes, matmul_rate, result_bytes
from cosformer.bench.systems import System, attempt

RUNS = 2
FORWARD, TRAINING = "forward", "forward_backward"


@dataclass(slots=True)
class Cell:
    """One system at one length: either samples of each run, or the reason why there are none."""

    system: System
    reason: str | None = None
    peak: int | None = None
    """Bytes allocated at once beyond q, k, v (and do)."""
    runs: list[Samples] = field(default_factory=list)


@dataclass(slots=True)
class Row:
    """One length."""

    bench: AttentionBench
    length: int
    cells: dict[str, dict[str, Cell]]
    """By mode (forward, forward_backward), then by system."""

    @property
    def batch(self) -> int:
        return self.bench.batch(self.length)

    def _shape(self) -> tuple[int, int, int, int, int]:
        bench = self.bench
        return self.batch, bench.heads, self.length, bench.width, bench.dtype.itemsize

    def floor_ms(self, mode: str, rates: Rates) -> float:
        return floor_bytes(*self._shape(), training=mode == TRAINING) / rates.copy * 1e3

    def cell_json(self, mode: str, cell: Cell, rates: Rates) -> dict[str, object]:
        if cell.reason is not None:
            return {"reason": cell.reason}
        seen = Samples.joined(cell.runs)
        ms = seen.median
        operations = cell.system.flops(self.length, self.bench.width) * self.batch * self.bench.heads * self.length
        if mode == TRAINING:
            operations *= TRAINING_FLOPS
        needed = result_bytes(*self._shape(), training=mode == TRAINING)
        return {
            "ms": ms, "p20": seen.at(0.2), "p80": seen.at(0.8), "ms_by_run": [run.median for run in cell.runs],
            "samples": len(seen.ms), "times_floor": ms / self.floor_ms(mode, rates),
            "share_of_matmul": operations / (ms * 1e-3) / rates.matmul,
            "peak_mib": None if cell.peak is None else cell.peak / 2**20,
            "extra_percent": None if cell.peak is None else 100 * (cell.peak - needed) / needed,
            "call_us": seen.call, "cpu_ahead": seen.ahead,
        }  # fmt: skip

    def to_json(self, rates: Rates) -> dict[str, object]:
        return {
            "length": self.length,
            "batch": self.batch,
            "floor_ms": {mode: self.floor_ms(mode, rates) for mode in self.cells},
            **{
                mode: {name: self.cell_json(mode, cell, rates) for name, cell in cells.items()}
                for mode, cells in self.cells.items()
            },
        }


def measure(
    bench: AttentionBench,
    each: list[System],
    clock: Clock,
    *,
    said: Callable[[str], None] = lambda _: None,
    copied: int = 1 << 30,
    side: int = 8_192,
) -> tuple[list[Row], Rates]:
    """Rows by length, and the rates of the same minutes; `said` hears of each stage (`stages` of them)."""
    rows = [
        Row(bench, length, {mode: {s.name: Cell(s) for s in each} for mode in (FORWARD, TRAINING)})
        for length in sorted(bench.lengths)
    ]
    for row in rows:
        for mode, cell, run in _calls(row, each):
            cell.reason = _beyond(bench, row.length, mode, cell.system) or _warm(cell, run, clock)
            clock.clear()
        said(f"{row.length:,} tokens warmed")
    rates, device = Rates(), torch.device(bench.device)
    for number in range(1, RUNS + 1):
        rates.copies.append(copy_rate(clock, device, copied))
        rates.products.append(matmul_rate(clock, device, bench.dtype, side))
        for row in rows:
            for _, cell, run in _calls(row, each):
                if cell.reason is None:
                    cell.reason = _time(cell, run, clock, bench.repeats)
            clock.clear()
            said(f"{row.length:,} tokens timed, run {number} of {RUNS}")
    return rows, rates


def stages(bench: AttentionBench) -> int:
    return len(bench.lengths) * (1 + RUNS)


def _calls(row: Row, each: list[System]) -> Iterator[tuple[str, Cell, Callable[[], object]]]:
    """Every cell of the row with its call, on inputs of the layout the system takes."""
    bench, made = row.bench, {}
    for mode in (FORWARD, TRAINING):
        for system in each:
            if system.tokens_first not in made:
                shape = [row.batch, bench.heads, row.length, bench.width]
                if system.tokens_first:
                    shape[1], shape[2] = shape[2], shape[1]
                made[system.tokens_first] = [
                    torch.randn(shape, device=bench.device, dtype=bench.dtype) for _ in range(4)
                ]
            call = _forward if mode == FORWARD else _training
            yield mode, row.cells[mode][system.name], call(system, made[system.tokens_first])


def _forward(system: System, x: list[Tensor]) -> Callable[[], object]:
    def run() -> Tensor:
        with torch.no_grad():
            return system.attend(x[0], x[1], x[2])

    return run


def _training(system: System, x: list[Tensor]) -> Callable[[], object]:
    inputs, do = [t.detach().requires_grad_() for t in x[:3]], x[3]

    def run() -> tuple[Tensor, ...]:
        return torch.autograd.grad(system.attend(*inputs), inputs, do)

    return run


def _beyond(bench: AttentionBench, length: int, mode: str, system: System) -> str | None:
    limit = bench.softmax_limit if mode == FORWARD else bench.softmax_backward_limit
    return f"not asked beyond {limit:,} tokens" if system.group == "sdpa" and length > limit else None


def _warm(cell: Cell, run: Callable[[], object], clock: Clock) -> str | None:
    def twice() -> None:
        run()
        cell.peak = clock.peak(run)  # compiled and tuned by now: what the call itself needs

    return attempt(twice, ours=cell.system.ours)


def _time(cell: Cell, run: Callable[[], object], clock: Clock, repeats: int) -> str | None:
    return attempt(lambda: cell.runs.append(clock.time(run, repeats=repeats)), ours=cell.system.ours)
