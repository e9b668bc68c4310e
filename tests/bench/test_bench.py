"""The measuring itself: gate, medians, formulas, whole files."""

from pathlib import Path

import pytest
import torch

from cosformer.bench import environment, gate, memory, report
from cosformer.bench.timing import interleaved, summarize
from cosformer.ops.cost import bytes_moved, flops_per_token, state_bytes
from cosformer.ops.state import AttentionState

FP32 = {"device": "cpu", "dtype": torch.float32, "width": 64, "backend": "auto"}


def test_counts_of_the_contract() -> None:
    assert flops_per_token(64, 64, causal=True) == 49_152
    assert flops_per_token(64, 64, causal=False) == 32_768
    assert bytes_moved(1, 8, 1_048_576, 64, 64, 4) == 4 * 8 * 1_048_576 * 64 * 4
    assert state_bytes(3, 2, 8, 5) == AttentionState.zeros(3, 2, 8, 5, horizon=9).nbytes


def test_a_wrong_operator_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gate.cosformer_attention
    monkeypatch.setattr(gate, "cosformer_attention", lambda *x, **o: right(*x, **o) * 1.001)
    with pytest.raises(RuntimeError, match="a wrong result is not timed"):
        gate.gate_attention(**FP32)


def test_a_wrong_gradient_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gate.cosformer_attention

    def half_blind(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options) -> torch.Tensor:
        return right(q, k, v.detach() + (v - v.detach()) * 1.001, **options)  # the same output

    monkeypatch.setattr(gate, "cosformer_attention", half_blind)
    with pytest.raises(RuntimeError, match="dv of cosformer, causal, T=333 is off"):
        gate.gate_attention(**FP32)


def test_a_wrong_step_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gate.attention_step
    monkeypatch.setattr(gate, "attention_step", lambda *x, **o: right(*x, **o) * 1.001)
    with pytest.raises(RuntimeError, match="decoding step is off"):
        gate.gate_steps(**FP32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_gate_passes_the_right_one(dtype: torch.dtype, backend: str) -> None:
    options = {"device": "cpu", "dtype": dtype, "width": 16, "backend": backend}
    errors = gate.gate_attention(**options) | gate.gate_steps(**options)
    assert len(errors) == 5
    assert max(errors.values()) < 10 * torch.finfo(dtype).eps ** 0.9


def test_commit_is_told_where_there_is_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "cosformer" / "bench" / "environment.py"))
    monkeypatch.delenv("COSFORMER_COMMIT", raising=False)
    assert environment.commit() is None
    monkeypatch.setenv("COSFORMER_COMMIT", "0123456789ab")
    assert environment.commit() == "0123456789ab"


def test_cuda_is_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "devices", lambda: {"cpu": "a processor", "cuda:0": "one", "cuda:1": "two"})
    found = [environment.provenance(name)["device"] for name in ("cpu", "cuda", "cuda:1")]
    assert found == ["a processor", "one", "two"]


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["/somewhere/bin/cosformer", "bench", "a b"], "cosformer bench 'a b'"),
        (["/somewhere/cosformer/cli/main.py", "env"], "python -m cosformer.cli.main env"),
    ],
)
def test_the_command_is_as_typed(arguments: list[str], typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.sys, "argv", arguments)
    assert environment.command() == typed


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
