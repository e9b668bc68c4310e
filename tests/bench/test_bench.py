"""The measuring itself: gate, medians, formulas, whole files."""

from pathlib import Path

import pytest
import torch

from cosformer.bench import attention, memory, report
from cosformer.bench.attention import AttentionBench
from cosformer.bench.timing import interleaved, summarize
from cosformer.ops.cost import bytes_moved, flops_per_token, state_bytes
from cosformer.ops.state import AttentionState


def test_counts_of_the_contract() -> None:
    assert flops_per_token(64, 64, causal=True) == 49_152
    assert flops_per_token(64, 64, causal=False) == 32_768
    assert bytes_moved(1, 8, 1_048_576, 64, 64, 4) == 4 * 8 * 1_048_576 * 64 * 4
    assert state_bytes(3, 2, 8, 5) == AttentionState.zeros(3, 2, 8, 5, horizon=9).nbytes


def test_a_wrong_operator_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention.cosformer_attention
    monkeypatch.setattr(attention, "cosformer_attention", lambda *x, **o: right(*x, **o) * 1.001)
    with pytest.raises(RuntimeError, match="a wrong result is not timed"):
        attention.gate(AttentionBench())


def test_the_gate_passes_the_right_one() -> None:
    assert max(attention.gate(AttentionBench(width=16)).values()) < 1e-5


def test_systems_take_turns() -> None:
    order: list[str] = []
    interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, torch.device("cpu"), 3)
    assert "".join(order) == "ab" * 5  # two rounds to warm up


def test_median_and_middle_half() -> None:
    time = summarize([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (time.low, time.ms, time.high) == (2.0, 3.0, 4.0)
    assert summarize([7.0]).ms == 7.0


def test_memory_is_measured_in_its_own_process() -> None:
    seen = memory.peak_memory(heads=2, length=200_000, width=16)
    # at least the tensors themselves; the interpreter's own wobble is small beside 102 MB
    assert 0.9 < seen["ratio"] < 1.5


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    report.write_json(path, {"old": 1})

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(report.os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        report.write_json(path, {"new": 2})
    assert "old" in path.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
