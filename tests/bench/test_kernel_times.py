"""Profiles of a step name what it does."""

import torch

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
