"""Two clocks with one face. On a GPU: the time its kernels take, apart from the time the CPU takes to launch them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

LEAST = 5  # repeats, however long they take
CYCLES_PER_US = 2_000  # of a GPU at 2 GHz; a slower one merely sleeps longer


@dataclass(slots=True)
class Samples:
    ms: list[float] = field(default_factory=list)
    call_us: list[float] = field(default_factory=list)
    """How long the CPU was busy with the call."""
    ahead: bool = True
    """Whether all was launched before the GPU began: if not, `ms` may hold waiting for the CPU."""

    @property
    def median(self) -> float:
        return statistics.median(self.ms)

    @classmethod
    def joined(cls, runs: "list[Samples]") -> "Samples":
        return cls(
            ms=[x for run in runs for x in run.ms],
            call_us=[x for run in runs for x in run.call_us],
            ahead=all(run.ahead for run in runs),
        )

    @property
    def call(self) -> float:
        return statistics.median(self.call_us)

    def at(self, share: float) -> float:
        """The sample below which this share of all lies."""
        ordered = sorted(self.ms)
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])


class Clock(Protocol):
    def time(self, run: Callable[[], object], *, repeats: int, budget_s: float = 0.5) -> Samples:
        """Up to `repeats` samples, fewer where they would take longer than the budget; after unmeasured calls."""
        ...

    def peak(self, run: Callable[[], object]) -> int | None:
        """Most bytes allocated at once during the call, beyond what was there before; None: not known."""
        ...

    def clear(self) -> None:
        """Give freed memory back."""
        ...


def _repeats(one_s: float, repeats: int, budget_s: float) -> int:
    return max(min(repeats, LEAST), min(repeats, int(budget_s / max(one_s, 1e-9))))


class HostClock:
    """Wall-clock time on the CPU."""

    def time(self, run: Callable[[], object], *, repeats: int, budget_s: float = 0.5) -> Samples:
        run()
        start = time.perf_counter()
        run()
        count = _repeats(time.perf_counter() - start, repeats, budget_s)
        samples = Samples()
        for _ in range(count):
            start = time.perf_counter()
            run()
            samples.ms.append((time.perf_counter() - start) * 1e3)
            samples.call_us.append(samples.ms[-1] * 1e3)
        return samples

    def peak(self, run: Callable[[], object]) -> int | None:
        run()
        return None

    def clear(self) -> None:
        pass


class CudaClock:
    """GPU time between two events. Before the first, L2 is overwritten and the GPU sleeps until all is launched."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        torch.cuda.set_device(device)  # events and sleeps go to the current one
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        self.flushed = torch.empty(4 * cache, dtype=torch.uint8, device=device)

    def time(self, run: Callable[[], object], *, repeats: int, budget_s: float = 0.5) -> Samples:
        for _ in range(2):
            run()
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        run()
        call_us = (time.perf_counter() - start) * 1e6
        torch.cuda.synchronize(self.device)
        count = _repeats(time.perf_counter() - start, repeats, budget_s)
        sleep_us = max(200.0, 2 * call_us)
        samples = self._sample(run, count, sleep_us)
        # A call that waits for the GPU itself can never be ahead, so this ends
        for _ in range(3):
            if samples.ahead:
                break
            sleep_us = min(4 * sleep_us, 50_000)
            samples = self._sample(run, count, sleep_us)
        return samples

    def _sample(self, run: Callable[[], object], count: int, sleep_us: float) -> Samples:
        samples, late = Samples(), 0
        for _ in range(count):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flushed.zero_()
            torch.cuda._sleep(int(sleep_us * CYCLES_PER_US))
            begin.record()
            start = time.perf_counter()
            run()
            samples.call_us.append((time.perf_counter() - start) * 1e6)
            end.record()
            late += begin.query()  # the GPU came past before everything was launched
            end.synchronize()
            samples.ms.append(begin.elapsed_time(end))
        samples.ahead = late * 5 <= count  # a hiccup of the CPU now and then does not move the median
        return samples

    def peak(self, run: Callable[[], object]) -> int | None:
        torch.cuda.synchronize(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        run()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before

    def clear(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()


def clock_for(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
