"""`cosformer bench train`: gated, the systems alike but for attention, one graph, with the origin of its numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cosformer.bench import train as training
from cosformer.bench.train import Training, gate, measure
from cosformer.bench.train_settings import CUDNN, OURS, PRESETS, SOFTMAX, Size, TrainBench, defaults
from cosformer.cli.main import app
from cosformer.models import cosformer_kind
from cosformer.models.configuration_checks import POSITIONS
from cosformer.models.inspection import describe, training_flops_per_token

SMALL = TrainBench(
    size=Size(layers=2, width=32, heads=2, vocab=50, tokens=64), lengths=(16, 40), attentions=(OURS, SOFTMAX), repeats=2
)


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PEAK_SIDE", {"cpu": 64, "cuda": 1_024})


def run(*arguments: object):
    return CliRunner().invoke(app, ["bench", "train", *map(str, arguments)])


def test_every_cell_has_its_numbers() -> None:
    said: list[str] = []
    result = measure(SMALL, said=said.append)
    assert len(said) == training.stages(SMALL) == 8
    assert [(row["length"], row["batch"]) for row in result["rows"]] == [(16, 4), (40, 1)]
    for row in result["rows"]:
        assert list(row["cells"]) == [OURS, SOFTMAX]
        for cell in row["cells"].values():
            assert cell["low"] <= cell["step_ms"] <= cell["high"]
            assert cell["tokens_per_s"] == pytest.approx(row["batch"] * row["length"] * 1e3 / cell["step_ms"])
            achieved = cell["flops_per_token"] * cell["tokens_per_s"]
            assert cell["share_of_matmul"] == pytest.approx(achieved / result["matmul_tflop_per_s"] / 1e12)
        ours, softmax = row["cells"].values()
        assert ours["parameters"] == softmax["parameters"]
        ratio = result["conclusions"][str(row["length"])]["over_softmax"]
        assert ratio == pytest.approx(softmax["step_ms"] / ours["step_ms"])


def test_the_models_differ_in_attention_alone() -> None:
    one, other = (SMALL.config(name, 16).to_dict() for name in (OURS, SOFTMAX))
    assert {key for key in one if one[key] != other[key]} == {"attention"}
    left, right = (Training(SMALL, name, 16) for name in (OURS, SOFTMAX))
    assert torch.equal(left.ids, right.ids)
    assert all(torch.equal(a, b) for a, b in zip(left.parameters, right.parameters, strict=True))


def test_a_step_trains() -> None:
    one = Training(SMALL, OURS, 16)
    losses = [float(one.step()) for _ in range(20)]
    assert losses[-1] < losses[0] - 0.05
    assert all(p.grad is None for p in one.parameters)


def test_operations_by_formula() -> None:
    """25M: 6 for each weight; then softmax grows with the length and cosFormer does not."""
    big = defaults("cpu", "25m")
    width, inner = 512, 1_408
    weights = 8 * (4 * width**2 + 3 * width * inner) + 256 * width
    assert 25e6 < weights < 26e6
    for length in (2_048, 32_768):
        ours = training_flops_per_token(big.config(OURS, length), length)
        assert ours == 6 * weights + 3 * 8 * 8 * 49_152
        softmax = training_flops_per_token(big.config(SOFTMAX, length), length)
        assert softmax == pytest.approx(6 * weights + 3 * 8 * 4 * width * length / 2, rel=1e-3)
    assert describe(defaults("cpu", "350m").config(OURS, 64))["parameters"]["total"] == pytest.approx(337e6, rel=0.01)


def test_a_profile_names_what_takes_the_time() -> None:
    cells = measure(replace(SMALL, lengths=(40,), profiled=True))["rows"][0]["cells"]
    named = {name: {row["name"]: row for row in cell["kernels"]} for name, cell in cells.items()}
    assert any("cosformer::attention" in name for name in named[OURS])
    assert not any("cosformer::attention" in name for name in named[SOFTMAX])
    for name, rows in named.items():
        times = [row["ms"] for row in cells[name]["kernels"]]
        assert times == sorted(times, reverse=True)
        assert rows["aten::mm"]["ms"] > 0
        assert (
            rows["aten::mm"]["launches"] >= 2 * (4 + 3) * SMALL.size.layers
        )  # gradients of every weight and of what it took


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gate_passes_what_is_right(dtype: torch.dtype) -> None:
    off = gate(replace(SMALL, size=replace(SMALL.size, width=64), lengths=(64,), dtype=dtype), OURS)
    assert off["gradient"] < 0.2
    assert off["loss"] > 0 if dtype == torch.bfloat16 else off["loss"] == 0


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_gate_passes_any_positions(positions: str) -> None:
    size = replace(SMALL.size, width=64, tokens=256)
    off = gate(replace(SMALL, size=size, lengths=(128,), dtype=torch.bfloat16, positions=positions), OURS)
    assert 0 < off["gradient"] < 0.2


@pytest.mark.parametrize("wrong", ["another horizon", "no gradient of q"])
def test_what_is_wrong_is_not_timed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cosformer_kind.cosformer_attention

    def broken(q: Any, k: Any, v: Any, **options: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return right(q, k, v, **options)
        if wrong == "no gradient of q":
            return right(q.detach(), k, v, **options) + 0 * q
        return right(q, k, v, **options | {"horizon": 3 * options["horizon"]})

    monkeypatch.setattr(cosformer_kind, "cosformer_attention", broken)
    with pytest.raises(RuntimeError, match="what is wrong is not timed"):
        measure(replace(SMALL, lengths=(64,), dtype=torch.bfloat16))


def test_out_of_memory_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Training.step

    def exhausts(self: Training) -> torch.Tensor:
        if self.model.config.attention == SOFTMAX and self.ids.shape[1] == 40:
            raise torch.OutOfMemoryError("no room")
        return right(self)

    monkeypatch.setattr(Training, "step", exhausts)
    result = measure(SMALL)
    assert result["rows"][1]["cells"][SOFTMAX] == {"reason": "out of memory"}
    assert result["rows"][1]["cells"][OURS]["tokens_per_s"] > 0
    assert list(result["conclusions"]) == ["16"]


def test_a_rival_that_is_wrong_is_a_cell_too(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gate

    def refuses(bench: TrainBench, attention: str) -> dict[str, float]:
        if attention == SOFTMAX:
            raise RuntimeError("no kernel")
        return right(bench, attention)

    monkeypatch.setattr(training, "gate", refuses)
    cells = [row["cells"][SOFTMAX] for row in measure(SMALL)["rows"]]
    assert cells == [{"reason": "RuntimeError: no kernel"}] * 2


def test_the_ratio_is_told_against_the_fastest_softmax_too() -> None:
    cells = {name: {"tokens_per_s": rate} for name, rate in ((OURS, 60.0), (SOFTMAX, 20.0), (CUDNN, 30.0))}
    found = training.conclusions([{"length": 8, "cells": cells}])
    assert found == {"8": {"over_softmax": 3.0, "over_fastest_softmax": 2.0}}


def test_defaults_by_device() -> None:
    cuda = defaults("cuda:0", None)
    assert (cuda.preset, cuda.lengths, cuda.attentions) == ("25m", (2_048, 8_192, 32_768), (OURS, SOFTMAX, CUDNN))
    assert (cuda.dtype, cuda.compiled, cuda.batch(32_768)) == (torch.bfloat16, "default", 16)
    assert defaults("cuda:0", "350m").lengths == (8_192,)
    cpu = defaults("cpu", None)
    assert (cpu.dtype, cpu.compiled, cpu.attentions) == (torch.float32, "none", (OURS, SOFTMAX))


@pytest.mark.parametrize("attention", [OURS, SOFTMAX])
def test_a_step_under_autocast_is_one_graph(attention: str) -> None:
    """Tables of rotary positions are made once; q, k and v reach the operator in bf16, heads side by side."""
    torch.compiler.reset()
    one, graphs = Training(replace(SMALL, dtype=torch.bfloat16, positions="rotary"), attention, 40), []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    one.call = torch.compile(one.model, backend=keep, fullgraph=True, dynamic=False)
    one.step()
    assert len(graphs) == 1
    called = [str(node.target) for node in graphs[0].graph.nodes]
    assert sum("rotary_tables" in name for name in called) == 1
    for node in graphs[0].graph.nodes:
        if "cosformer.attention" in str(node.target):
            for x in (arg.meta["example_value"] for arg in node.args[:3]):
                assert x.dtype == torch.bfloat16
                assert x.stride() == (40 * 32, 16, 32, 1)


def test_a_step_as_it_is_measured_joins_q_k_and_v() -> None:
    """In bf16, heads side by side."""
    torch.compiler.reset()
    one, given = Training(replace(SMALL, dtype=torch.bfloat16), OURS, 40), []

    def keep(graph: Any, inputs: Any) -> Any:
        given.extend(node.args[0] for node in graph.graph.nodes if "attention_joined" in str(node.target))
        return graph.forward

    one.call = torch.compile(one.model, backend=keep, fullgraph=True, dynamic=False)
    one.step()
    assert len(given) == SMALL.size.layers
    for qkv in given:
        x = qkv.meta["example_value"]
        assert (x.dtype, tuple(x.shape), x.is_contiguous()) == (torch.bfloat16, (1, 40, 6, 16), True)


def test_the_command_writes_a_result_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "2m", SMALL.size)
    out, plot = tmp_path / "train.json", tmp_path / "train.png"
    done = run("--lengths", "16,40", "--repeats", 2, "--json", out, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert "× softmax as torch chooses" in done.stdout
    result = json.loads(out.read_text())
    assert {"device", "date", "commit", "versions", "command", "settings", "conclusions"} <= result.keys()
    assert (result["benchmark"], result["settings"]["lengths"]) == ("train", [16, 40])
    assert plot.read_bytes()[:4] == b"\x89PNG"
    printed = run("--lengths", 16, "--repeats", 1, "--tokens", 32, "--json", "-")
    assert json.loads(printed.stdout)["rows"][0]["batch"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "not on this machine"),
        (["--preset", "7b"], "use one of 2m, 25m, 350m"),
        (["--lengths", "0"], "each at least 1"),
        (["--attentions", "cosformer,linear"], "attention linear is unknown"),
        (["--attentions", "softmax_cudnn"], "needs a CUDA device"),
        (["--dtype", "fp16"], "fp32 or bf16"),
        (["--compile", "yes"], "use one of none, default"),
        (["--positions", "random"], "positions='random' is unknown"),
    ],
    ids=str,
)
def test_refusals(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.replace("│", " ").split())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu() -> None:
    size = Size(layers=2, width=128, heads=2, vocab=256, tokens=1_024)
    result = measure(replace(defaults("cuda:0", "25m"), size=size, lengths=(256,), steps=2, repeats=2))
    for cell in result["rows"][0]["cells"].values():
        assert cell["tokens_per_s"] > 0, cell
        assert cell["peak_bytes"] > 0
