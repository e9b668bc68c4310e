"""A result of a sweep and a table of trainings, made by hand: every state, hostile names."""

import json
from pathlib import Path
from typing import Any

from cosformer.compare.results import Cell, Result
from cosformer.compare.settings import defaults

HOSTILE = '</td><script>window.broken = 1</script> & "quotes"'
LENGTHS = (512, 1_024, 2_048, 4_096)
GROWTH = {
    "cosformer": (1.0, 0.0), "softmax": (0.8, 1.0), "cosformer_nocos": (0.9, 0.0), "linear": (2.0, 0.0),
    "performer": (6.0, 0.0), "rfa": (3.0, 0.0), "sparse": (4.0, 0.5), "reformer": (60.0, 0.1),
    "linformer": (3.0, 0.0), "bigbird": (5.0, 0.0), "nobody's": (7.0, 0.2),
}  # fmt: skip
"""Microseconds of a token at 512, and the power of the length by which they grow."""


def made_result() -> Result:
    sweep = defaults("cpu")
    environment = {
        "device": "a processor, 2 threads", "date": "2026-11-16", "commit": "0123456789ab",
        "versions": {"cosformer": "0.1.0", "torch": "2.13.0"}, "command": "cosformer compare speed",
    }  # fmt: skip
    result = Result(environment=environment, settings=sweep.meaning())
    for attention, (first, power) in GROWTH.items():
        for mode in ("causal", "bidirectional"):
            for work, factor in (("forward", 1), ("training", 4)):
                for length in LENGTHS:
                    cell = result.cell(cell_key(attention, mode, work, length), sweep.batch(length))
                    us = first * factor * (length / 512) ** power
                    ms = us * cell.batch * length / 1e3
                    cell.state, cell.visits, cell.samples = "done", 3, [ms * 0.9, ms, ms * 1.2]
                    cell.memory_bytes = int(us * 1_000 * cell.batch * length)
    _close(result, "linformer", "causal", "refused", HOSTILE, LENGTHS)
    _close(result, "bigbird", "causal", "refused", "it looks both ways", LENGTHS)
    _close(result, "softmax", "causal", "out of memory", "", (4_096,), works=("training",))
    _close(result, "reformer", "causal", "slow", "about 9 s a call expected", (2_048,))
    _close(result, "reformer", "causal", "not tried", "slow at 2,048", (4_096,))
    _close(result, "performer", "causal", "killed", "the process was ended by SIGKILL", (4_096,))
    waiting = result.cells[cell_key("rfa", "causal", "forward", 4_096)]
    waiting.state, waiting.visits, waiting.why = "waiting", 1, "the 4 minutes of the sweep were over"
    return result


def cell_key(attention: str, mode: str, work: str, length: int) -> Any:
    return Cell(attention, mode, work, length, 1).key


def _close(
    result: Result, attention: str, mode: str, state: str, why: str, lengths: tuple[int, ...],
    works: tuple[str, ...] = ("forward", "training"),
) -> None:  # fmt: skip
    for work in works:
        for length in lengths:
            cell = result.cells[cell_key(attention, mode, work, length)]
            cell.state, cell.why, cell.samples, cell.memory_bytes = state, why, [], None


def made_queue() -> dict[str, Any]:
    """As the table of `cosformer lra run`."""
    cells, rows = [], []
    for group, rates in (("listops", (1_000.0, 2_000.0, 3_000.0)), ("image", (118_144.0, 120_500.0, 123_000.0))):
        for i, variant in enumerate(("cosformer", "softmax", "linear")):
            value = 0.36 + 0.01 * i
            for seed in range(3):
                cells.append({
                    "group": group, "variant": variant, "seed": seed, "state": "done", "why": "", "metric": "accuracy",
                    "better": "higher", "split": "test", "value": value, "tokens_per_second": rates[i],
                    "steps_per_second": 3.0 - i, "memory_bytes": 1 << 27, "run": f"{group}-{variant}-{seed}",
                })  # fmt: skip
            rows.append({
                "group": group, "variant": variant, "metric": "accuracy", "better": "higher", "split": "test",
                "seeds": 3, "value": value, "low": value - 0.01, "high": value + 0.01, "steps_per_second": 3.0 - i,
                "memory_bytes": 1 << 27, "state": "done", "why": "",
            })  # fmt: skip
    skipped = {"variant": "cosformer", "state": "skipped", "why": "the files of AAN are not there", "seeds": 0}
    rows.append({"group": "retrieval", **skipped})
    return {"benchmark": "queue", "kind": "queue", "name": "lra", "settings": {}, "cells": cells, "table": rows}


def made_runs() -> dict[str, Any]:
    """As a file of docs/run_results.py: two attentions, one of them with two seeds."""

    def run(attention: str, seed: int, bits: float) -> dict[str, Any]:
        return {
            "model.attention": attention, "seed": seed, "steps": 100, "seconds": 60.0, "tokens": 100_000,
            "tokens_per_second": 2_000.0, "memory_bytes": 1 << 26,
            "metrics": {"loss": 1.5, "bits_per_byte": bits + 0.1},
            "evaluations": {"test": {"metrics": {"loss": 1.4, "bits_per_byte": bits}}},
        }  # fmt: skip

    return {
        "benchmark": "training runs", "recipe": {"name": "lm-text"}, "differ_in": ["model.attention", "seed"],
        "runs": {
            "a": run("cosformer", 0, 2.0), "b": run("cosformer", 1, 2.2), "c": run("softmax", 0, 1.9),
        },
    }  # fmt: skip


def make_comparison(folder: Path) -> Path:
    """speed.json, and beside it quality files in a folder."""
    made_result().write(folder / "speed.json")
    quality = folder / "quality"
    quality.mkdir()
    (quality / "lra.json").write_text(json.dumps(made_queue()))
    (quality / "runs.json").write_text(json.dumps(made_runs()))
    (quality / "other.json").write_text(json.dumps({"benchmark": "attention"}))
    return folder
