"""Where the time of a call goes: kernels on a GPU, operators on a CPU, longest first."""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cosformer.bench.timing import synchronize

SHOWN = 40


def kernel_times(call: Callable[[], object], device: torch.device, *, calls: int = 2) -> list[dict[str, Any]]:
    """Name, milliseconds in a call of all its launches, and how many these are. `call` is warm already."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, acc_events=True) as seen:
        for _ in range(calls):
            call()
        synchronize(device)
    wanted = "CUDA" if on_gpu else "CPU"
    found = [event for event in seen.key_averages() if event.device_type.name == wanted]
    if on_gpu:  # spans that programs name lie over the kernels, which would count twice
        found = [event for event in found if not event.is_user_annotation]
    rows = []
    for event in found:
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total  # microseconds
        rows.append({"name": event.key, "ms": spent / 1e3 / calls, "launches": event.count / calls})
    return sorted(rows, key=lambda row: -row["ms"])[:SHOWN]
