"""Where the time of a call goes: kernels on a GPU, operators on a CPU, longest first."""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cosformer.bench.timing import synchronize

SHOWN = 40


class KernelTimes:
    """Between start and stop, every kernel that runs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self.profile = profile(activities=activities, acc_events=True)

    def start(self) -> None:
        synchronize(self.device)
        self.profile.start()

    def stop(self, calls: int) -> list[dict[str, Any]]:
        """Name, milliseconds in a call of all its launches, and how many these are; `calls` were made since start."""
        synchronize(self.device)
        self.profile.stop()
        on_gpu = self.device.type == "cuda"
        rows = []
        for event in self.profile.key_averages():
            # spans that programs name lie over the kernels, which would count twice
            if event.device_type.name == ("CUDA" if on_gpu else "CPU") and not (on_gpu and event.is_user_annotation):
                spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total  # microseconds
                rows.append({"name": event.key, "ms": spent / 1e3 / calls, "launches": event.count / calls})
        return sorted(rows, key=lambda row: -row["ms"])


def kernel_times(call: Callable[[], object], device: torch.device, *, calls: int = 2) -> list[dict[str, Any]]:
    """Of a call that is warm already."""
    seen = KernelTimes(device)
    seen.start()
    for _ in range(calls):
        call()
    return seen.stop(calls)[:SHOWN]
