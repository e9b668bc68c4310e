"""Fair timing on a noisy machine: the systems take turns, so that a slow spell hits them all."""

import ctypes
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


def keep_freed_memory() -> bool:
    """Let this process keep large blocks it frees, as GPU allocators do. False where the C library has no such switch.

    Otherwise every result above 32 MiB is fresh memory, cleared page by page by the kernel while it is being timed: on
    a virtual machine that took up to half of the measured time, at random.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trim, threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    return bool(mallopt(threshold, 2**31 - 1)) and bool(mallopt(trim, 2**31 - 1))


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
