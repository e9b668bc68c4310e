"""Fair timing on a noisy machine: the systems take turns, so that a slow spell hits them all."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Time:
    """Milliseconds: the median and the middle half of the repeats."""

    ms: float
    low: float
    high: float


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def once(run: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return (time.perf_counter() - start) * 1e3


def interleaved(systems: dict[str, Callable[[], object]], device: torch.device, repeats: int) -> dict[str, Time]:
    """Each repeat runs every system once, in turn; two unmeasured rounds come first."""
    for _ in range(2):
        for run in systems.values():
            once(run, device)
    seen: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(repeats):
        for name, run in systems.items():
            seen[name].append(once(run, device))
    return {name: summarize(values) for name, values in seen.items()}


def summarize(values: list[float]) -> Time:
    if len(values) < 2:
        return Time(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Time(middle, low, high)
