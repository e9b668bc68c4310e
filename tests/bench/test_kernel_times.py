"""Profiles of a step name what it does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from cosformer.bench import kernel_times as timed
from cosformer.bench.kernel_times import KernelTimes, kernel_times


def test_names_time_and_launches_of_a_call() -> None:
    x = torch.randn(64, 64)
    rows = kernel_times(lambda: (x @ x, x @ x, x.relu()), torch.device("cpu"), calls=3)
    launches = {row["name"]: row["launches"] for row in rows}
    assert launches["aten::mm"] == 2
    assert launches["aten::relu"] == 1
    assert [row["ms"] for row in rows] == sorted((row["ms"] for row in rows), reverse=True)
    assert all(row["ms"] >= 0 for row in rows)


def test_only_what_runs_between_start_and_stop() -> None:
    x = torch.randn(8, 8)
    seen = KernelTimes(torch.device("cpu"))
    x @ x
    seen.start()
    x.relu()
    rows = seen.stop(1)
    x @ x
    names = {row["name"] for row in rows}
    assert "aten::relu" in names
    assert "aten::mm" not in names


def test_spans_that_programs_name_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU torch lists them beside the kernels they span (such as Optimizer.step), which would count twice."""

    def event(name: str, us: int, count: int, *, named: bool) -> SimpleNamespace:
        return SimpleNamespace(
            key=name, self_device_time_total=us, count=count, device_type=DeviceType.CUDA, is_user_annotation=named
        )

    class Seen:
        def __init__(self, **_: Any) -> None: ...
        def start(self) -> None: ...
        def stop(self) -> None: ...
        def key_averages(self) -> list[SimpleNamespace]:
            kernels = [event("add", 1_000, 1, named=False), event("mm", 8_000, 2, named=False)]
            return [event("Optimizer.step#AdamW.step", 9_000, 2, named=True), *kernels]

    monkeypatch.setattr(timed, "profile", Seen)
    monkeypatch.setattr(timed, "synchronize", lambda device: None)
    assert timed.kernel_times(lambda: None, torch.device("cuda")) == [
        {"name": "mm", "ms": 4.0, "launches": 1.0}, {"name": "add", "ms": 0.5, "launches": 0.5},
    ]  # fmt: skip
