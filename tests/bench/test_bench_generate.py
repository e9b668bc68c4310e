"""`cosformer bench generate`: gated, with the origin of its numbers; bytes constant for cosFormer, not for softmax."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cosformer.bench import generate as generating
from cosformer.bench.generate import GenerateBench, conclusions, gate, measure
from cosformer.cli.main import app
from cosformer.models import GraphDecoder

SMALL = GenerateBench(contexts=(20, 200), layers=2, width=16, heads=2, vocab=50, steps=2, repeats=2)
SIZES = {"contexts": "20,200", "layers": 2, "width": 16, "heads": 2, "vocab": 50, "steps": 2, "repeats": 2}
OPTIONS = [part for name, value in SIZES.items() for part in (f"--{name}", value)]


def run(*arguments: object):
    return CliRunner().invoke(app, ["bench", "generate", *map(str, arguments)])


def test_bytes_are_constant_for_one_and_grow_for_the_other() -> None:
    said: list[str] = []
    result = measure(SMALL, said=said.append)
    assert len(said) == generating.stages(SMALL) == 12
    ours, softmax = result["models"]["cosformer"], result["models"]["softmax"]
    assert ours["parameters"] == softmax["parameters"]
    for way in ("eager", "static"):
        cells = list(ours[way].values())
        # two layers of two heads of 8, fp32, and a count of tokens each
        assert {cell[key] for cell in cells for key in ("cache_bytes", "cache_bytes_after")} == {
            2 * (2 * 2 * 8 * 9 * 4 + 8)
        }
        assert all(cell["low"] <= cell["ms_per_token"] <= cell["high"] for cell in cells)
    held = [softmax["eager"][context]["cache_bytes"] for context in ("20", "200")]
    assert held == [2 * 2 * 16 * 4 * context for context in (20, 200)]
    found = conclusions(result)
    assert found["cosformer"]["eager"]["bytes_constant"]
    assert not found["softmax"]["eager"]["bytes_constant"]


def test_both_models_differ_in_attention_alone() -> None:
    one, other = (SMALL.config(name).to_dict() for name in ("cosformer", "softmax"))
    assert {key for key in one if one[key] != other[key]} == {"attention"}
    left, right = (SMALL.model(name).state_dict() for name in ("cosformer", "softmax"))
    assert all(torch.equal(left[name], right[name]) for name in left | right)


def test_every_step_follows_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    right = GraphDecoder.step

    def watched(self: GraphDecoder) -> torch.Tensor:
        seen.append(self.length)
        return right(self)

    monkeypatch.setattr(GraphDecoder, "step", watched)
    monkeypatch.setattr(generating, "gate", lambda *_: 0.0)
    measure(SMALL)
    assert {length for length in seen if length < 100} == set(range(20, 28))
    assert {length for length in seen if length >= 100} == set(range(200, 208))


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate(SMALL.model("cosformer"), SMALL, "cosformer", "static") < 1e-5
    right = GraphDecoder._step

    def wrong(self: GraphDecoder) -> None:
        self.positions.add_(1)
        right(self)

    monkeypatch.setattr(GraphDecoder, "_step", wrong)
    with pytest.raises(RuntimeError, match="what is wrong is not timed"):
        gate(SMALL.model("softmax"), SMALL, "softmax", "static")


def test_a_softmax_cache_that_does_not_fit_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    right = generating._at

    def exhausts(model, bench, way, context):
        if model.config.attention == "softmax" and context == 200:
            raise torch.OutOfMemoryError("no room")
        return right(model, bench, way, context)

    monkeypatch.setattr(generating, "_at", exhausts)
    cells = measure(SMALL)["models"]["softmax"]["eager"]
    assert cells["200"] == {"reason": "out of memory"}
    assert cells["20"]["ms_per_token"] > 0


def test_what_capturing_gains() -> None:
    def cell(ms: float) -> dict:
        return {"ms_per_token": ms, "tokens_per_s": 1e3 / ms, "cache_bytes": 8, "cache_bytes_after": 8}

    ways = {
        "parameters": 1,
        "eager": {"10": cell(4.0), "99": cell(6.0)},
        "captured": {"10": cell(1.0), "99": cell(1.0)},
    }
    found = conclusions({"models": {"cosformer": ways}})["cosformer"]
    assert found["captured_over_eager"] == {"10": pytest.approx(4), "99": pytest.approx(6)}
    assert found["eager"]["time_longest_over_shortest"] == pytest.approx(1.5)
    assert "captured" in GenerateBench(device="cuda:0").ways


def test_the_command_writes_a_result_with_its_origin(tmp_path: Path) -> None:
    out = tmp_path / "generate.json"
    done = run(*OPTIONS, "--json", out)
    assert done.exit_code == 0, done.output
    assert "cosformer, eager: longest context over shortest" in done.stdout
    result = json.loads(out.read_text())
    assert {"device", "date", "commit", "versions", "command", "settings", "conclusions"} <= result.keys()
    assert result["settings"]["contexts"] == [20, 200]
    assert result["settings"]["threads"] == torch.get_num_threads()
    assert list(result["models"]["softmax"]["static"]) == ["20", "200"]
    printed = run(*OPTIONS, "--json", "-")
    assert json.loads(printed.stdout)["benchmark"] == "generate"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "not on this machine"),
        (["--contexts", "many"], "give whole numbers"),
        (["--contexts", "0"], "each at least 1"),
        (["--dtype", "int8"], "use one of fp32"),
        (["--threads", "0"], "threads"),
        (["--width", "10", "--heads", "4"], "share the width equally"),
    ],
    ids=str,
)
def test_refusals(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.replace("│", " ").split())


def test_the_help_says_how_the_context_is_made() -> None:
    assert "filling states and caches with random numbers" in " ".join(run("--help").output.replace("│", " ").split())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "generate.json"
    done = run("--device", "cuda", *OPTIONS, "--width", 128, "--json", out)
    assert done.exit_code == 0, done.output
    models = json.loads(out.read_text())["models"]
    for ways in models.values():
        for cell in ways["captured"].values():
            assert cell["ms_per_token"] > 0
