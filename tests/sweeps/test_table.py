"""Means, intervals and states of a queue's table."""

from typing import Any

import pytest

from cosformer.sweeps import markdown_table, rows_of
from cosformer.sweeps.table import interval, shown


def cell(seed: int, value: float | None, **more: Any) -> dict[str, Any]:
    done = {
        "state": "done", "why": "", "metric": "accuracy", "better": "higher", "split": "test", "value": value,
        "low": 0.3, "high": 0.5, "steps": 10, "parameters": 5, "steps_per_second": 2.0 + seed,
        "memory_bytes": 2**20,
    }  # fmt: skip
    return {"group": "listops", "variant": "cosformer", "seed": seed, **done, **more}


def test_one_seed_has_the_interval_of_its_examples() -> None:
    (row,) = rows_of([cell(0, 0.4)])
    assert (row["value"], row["low"], row["high"], row["seeds"]) == (0.4, 0.3, 0.5, 1)
    assert shown(row) == "40.0% (30.0–50.0)"


def test_several_seeds_have_that_of_their_mean() -> None:
    (row,) = rows_of([cell(0, 0.38), cell(1, 0.40), cell(2, 0.42)])
    assert row["value"] == pytest.approx(0.40)
    # s = 0.02, t(2) = 4.303: 4.303 · 0.02 / √3
    assert row["high"] - row["value"] == pytest.approx(0.0496873, abs=1e-6)
    assert row["steps_per_second"] == 3.0


def test_a_seed_that_failed_is_told_beside_the_others() -> None:
    failed = {"group": "listops", "variant": "cosformer", "seed": 1, "state": "failed", "why": "out of memory"}
    (row,) = rows_of([cell(0, 0.4), failed])
    assert (row["seeds"], row["state"], row["why"], row["value"]) == (1, "failed", "out of memory", 0.4)
    (row,) = rows_of([failed])
    assert shown(row) == "failed: out of memory"


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """Of 4,000 means of three draws, 95% lie within (σ of that share: 0.34%)."""
    import random

    chance = random.Random(0)
    inside = sum(
        low <= 0 <= high for low, high in (interval([chance.gauss(0, 1) for _ in range(3)]) for _ in range(4000))
    )
    assert abs(inside / 4000 - 0.95) < 4 * 0.0034


def test_markdown_has_groups_across() -> None:
    cells = [cell(0, 0.4), {**cell(0, 0.2), "variant": "linear"}]
    table = {"settings": {"groups": ["listops"], "variants": ["cosformer", "linear"]}, "table": rows_of(cells)}
    assert markdown_table(table).splitlines() == [
        "| | listops |",
        "|---|---:|",
        "| cosformer | 40.0% (30.0–50.0); 2.0 steps/s, 1 MiB |",
        "| linear | 20.0% (30.0–50.0); 2.0 steps/s, 1 MiB |",
    ]
