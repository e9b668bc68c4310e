"""The command as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cosformer.bench.attention import AttentionBench
from cosformer.cli.main import app
from cosformer.version import __version__

SMALL = ["bench", "attention", "--lengths", "16,40", "--heads", "1", "--width", "8", "--repeats", "2"]


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_env_says_which_backend_and_why() -> None:
    done = run("env", "--json")
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert facts["versions"]["cosformer"] == __version__
    assert facts["backends"]["cpu"].startswith(("cpu (auto: compiled kernel", "torch (auto: no compiled kernel"))
    assert "backend on cpu" in run("env").stdout


def test_env_tells_how_the_kernels_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = pytest.importorskip("cosformer.ops.triton.launch")
    monkeypatch.setattr(launch, "configurations", lambda: {"K, V <= 64": "chunk 64, 4 warps"}, raising=False)
    assert json.loads(run("env", "--json").stdout)["kernels"] == {"K, V <= 64": "chunk 64, 4 warps"}
    assert "Triton, K, V <= 64" in run("env").stdout


def test_env_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    import cosformer.ops.triton as package

    monkeypatch.delattr(package, "launch", raising=False)
    monkeypatch.setitem(sys.modules, "cosformer.ops.triton.launch", None)
    assert json.loads(run("env", "--json").stdout)["kernels"] == {}


def test_bench_writes_a_result_with_its_origin(tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "result.json"
    done = run(*SMALL, "--json", str(out), "--backend", "torch")
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    assert {"device", "date", "commit", "versions", "command", "backend"} <= result.keys()
    assert [row["length"] for row in result["rows"]] == [16, 40]
    for row in result["rows"]:
        softmax, ours = row["forward_ms"]["softmax (SDPA), causal"], row["forward_ms"]["cosformer, causal"]
        assert row["speedup_forward"] == pytest.approx(softmax["ms"] / ours["ms"])
        assert ours["low"] <= ours["ms"] <= ours["high"]
    assert result["step_us"]["position_10"] > 0
    assert [p.name for p in out.parent.iterdir()] == ["result.json"]


def test_bench_prints_json_alone_on_stdout() -> None:
    done = run(*SMALL, "--json", "-")
    assert json.loads(done.stdout)["benchmark"] == "attention"


def test_bench_defaults_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What README's CPU table was made with stays; a GPU gets what fills it."""
    seen = []
    module = sys.modules["cosformer.cli.bench"]
    monkeypatch.setattr(module, "chosen_device", lambda name: "cuda:0" if name == "cuda" else name)
    monkeypatch.setattr(module, "backend_in_words", lambda settings: "none")
    monkeypatch.setattr(module, "gate_attention", lambda **options: {})
    monkeypatch.setattr(module, "attention_on_gpu", lambda settings, *_: seen.append(settings))
    assert run("bench", "attention", "--device", "cuda").exit_code == 0
    few = ["--lengths", "1048576", "--tokens", "1048576", "--heads", "8", "--width", "128", "--dtype", "fp16"]
    assert run("bench", "attention", "--device", "cuda", *few).exit_code == 0
    full, long = seen
    assert (full.lengths, full.tokens, full.heads, full.width) == ((1_024, 8_192, 65_536), 131_072, 16, 64)
    assert (full.dtype, full.softmax_limit, full.softmax_backward_limit) == (torch.bfloat16, 65_536, 65_536)
    assert (long.lengths, long.batch(1_048_576), long.heads, long.width) == ((1_048_576,), 1, 8, 128)
    assert long.dtype == torch.float16
    cpu = AttentionBench()
    assert (cpu.lengths, cpu.tokens, cpu.heads, cpu.width) == ((512, 1_024, 4_096, 16_384, 65_536), 0, 8, 64)
    assert (cpu.dtype, cpu.repeats, cpu.softmax_limit, cpu.softmax_backward_limit) == (torch.float32, 9, 16_384, 4_096)


def test_memory_is_always_told_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cosformer.cli.bench"], "chosen_device", lambda name: "cuda:0")
    done = run("bench", "attention", "--device", "cuda", "--memory")
    assert done.exit_code == 2
    assert "--memory is for the CPU" in done.output


def test_decode_writes_a_result_with_its_origin(tmp_path: Path) -> None:
    out = tmp_path / "decode.json"
    small = ["--sequences", "2", "--heads", "2", "--width", "8", "--contexts", "16,32", "--repeats", "1"]
    done = run("bench", "decode", *small, "--json", str(out))
    assert done.exit_code == 0, done.output
    assert "ours at position 1,000,000" in done.stdout
    result = json.loads(out.read_text())
    assert {"device", "date", "commit", "versions", "command", "backend", "settings"} <= result.keys()
    assert result["benchmark"] == "decode"
    assert list(result["step"]) == ["10", "1000", "1000000"]
    assert list(result["softmax"]) == ["16", "32"]
    for cells in (*result["step"].values(), *result["softmax"].values()):
        assert cells["eager"]["p20"] <= cells["eager"]["us"] <= cells["eager"]["p80"]
    printed = run("bench", "decode", *small, "--json", "-")
    assert json.loads(printed.stdout)["settings"]["width"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "'cuda' is not on this machine"),
        (["--dtype", "int8"], "use one of fp32"),
        (["--contexts", "many"], "give whole numbers"),
        (["--contexts", "0"], "at least 1"),
        (["--backend", "fast"], "unknown"),
    ],
    ids=str,
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is on this machine")
def test_decode_refuses(arguments: list[str], message: str) -> None:
    done = run("bench", "decode", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_benchmarks_run_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "attention.json"
    small = ["--lengths", "256,512", "--tokens", "512", "--heads", "2", "--repeats", "5"]
    done = run("bench", "attention", "--device", "cuda", *small, "--systems", "ours,sdpa,torch", "--json", str(out))
    assert done.exit_code == 0, done.output
    for row in json.loads(out.read_text())["rows"]:
        for mode in ("forward", "forward_backward"):
            assert len(row[mode]) == 5
            ours = row[mode]["cosformer, causal"]
            assert ours["ms"] > 0
            assert ours["peak_mib"] > 0
    out = tmp_path / "decode.json"
    small = ["--sequences", "2", "--heads", "2", "--contexts", "256", "--repeats", "5"]
    done = run("bench", "decode", "--device", "cuda", *small, "--json", str(out))
    assert done.exit_code == 0, done.output
    for cells in json.loads(out.read_text())["step"].values():
        assert {way for way, cell in cells.items() if "us" in cell} == {"eager", "graph", "graph_hot"}


def test_precision_by_mode_and_dtype(tmp_path: Path) -> None:
    out = tmp_path / "precision.json"
    done = run("bench", "precision", "--steps", "50", "--backend", "torch", "--json", str(out))
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    errors = result["worst_error_against_float64"]
    assert set(errors) == {"causal", "bidirectional", "padded", "cross", "packed"}
    for by_dtype in errors.values():
        assert (
            by_dtype["fp64"]["output"] < 1e-13 < by_dtype["fp32"]["output"] < 1e-5 < by_dtype["bf16"]["output"] < 0.05
        )
    assert result["drift"]["output"] < 1e-5


def test_bench_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(*SMALL, "--plot", str(tmp_path / "speed.png"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "not on this machine"),
        (["--dtype", "int8"], "use one of fp32"),
        (["--lengths", "a,b"], "give whole numbers"),
        (["--lengths", "0"], "positive length"),
        (["--backend", "fast"], "unknown"),
        (["--repeats", "0"], "repeats"),
        (["--systems", "ours"], "--systems is for CUDA"),
        (["--systems", "xformers"], "use some of ours,sdpa,fla,torch"),
    ],
    ids=str,
)
def test_bench_refuses(arguments: list[str], message: str) -> None:
    done = run("bench", "attention", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output


HELP = {
    (): {"env", "demo", "bench", "compare", "train", "recipes", "eval", "report", "convert", "generate", "inspect",
         "tokenizer", "lra"},
    ("compare", "train"): {
        "--ablation", "--attentions", "--variant", "--seeds", "--before", "--data", "--set", "--set-before", "--out",
        "--jobs", "--device", "--json", "--quiet",
    },
    ("compare",): {"speed", "report", "train", "--out", "--device", "--minutes", "--quality"},
    ("compare", "speed"): {
        "--out", "--device", "--attentions", "--lengths", "--mode", "--heads", "--width", "--tokens", "--dtype",
        "--visits", "--limit", "--memory", "--minutes", "--import", "--json",
    },
    ("compare", "report"): {"--quality", "--out", "--markdown"},
    ("bench",): {"attention", "decode", "generate", "precision", "train"},
    ("bench", "decode"): {
        "--device", "--sequences", "--heads", "--width", "--contexts", "--dtype", "--repeats", "--backend", "--json",
    },
    ("bench", "precision"): {"--steps", "--backend", "--json"},
    ("bench", "attention"): {
        "--device", "--lengths", "--tokens", "--dtype", "--heads", "--width", "--repeats", "--backend",
        "--systems", "--memory", "--json", "--plot",
    },
    ("bench", "generate"): {
        "--device", "--contexts", "--batch", "--layers", "--width", "--heads", "--vocab", "--dtype", "--steps",
        "--repeats", "--threads", "--json",
    },
    ("bench", "train"): {
        "--device", "--preset", "--lengths", "--tokens", "--attentions", "--steps", "--repeats", "--dtype", "--compile",
        "--positions", "--profile", "--threads", "--json", "--plot",
    },
    ("train",): {
        "--data", "--valid-data", "--test-data", "--column", "--label", "--classes", "--out", "--set", "--pretrain",
        "--resume", "--device", "--cache", "--quiet", "--json",
    },
    ("lra",): {"run", "table"},
    ("lra", "run"): {
        "--tasks", "--attentions", "--seeds", "--data", "--large", "--pretrain", "--set", "--out", "--jobs", "--device",
        "--json", "--quiet",
    },
    ("lra", "table"): {"--markdown", "--json"},
    ("recipes",): {"--json"},
    ("eval",): {
        "--split", "--data", "--test-data", "--context", "--stride", "--batch", "--batches", "--beams", "--device",
        "--cache", "--json",
    },
    ("convert",): {"--attention", "--horizon", "--feature-map", "--normalizer", "--seed", "--json"},
    ("generate",): {
        "--prompt", "--max-new-tokens", "--stream", "--temperature", "--top-k", "--top-p", "--seed", "--device",
        "--dtype", "--graph",
    },
    ("inspect",): {"--json", "--attention-map", "--out"},
    ("report",): {"--out"},
    ("tokenizer",): {"train", "bytes"},
    ("tokenizer", "train"): {"--out", "--vocab-size", "--min-frequency", "--max-length"},
    ("tokenizer", "bytes"): {"--out", "--max-length"},
    ("env",): {"--json"},
    ("demo",): {"--out", "--quick"},
}  # fmt: skip


@pytest.mark.parametrize("command", HELP, ids=str)
def test_help_lists_exactly_these(command: tuple[str, ...]) -> None:
    """The command line is public: an option or verb that appears or goes must be meant."""
    import typer

    group = typer.main.get_command(app)
    for name in command:
        group = group.commands[name]  # pyright: ignore[reportAttributeAccessIssue]
    verbs = set(getattr(group, "commands", ()))
    options = {o for p in group.params for o in p.opts if o.startswith("--")}
    assert verbs | options == HELP[command]
    assert run(*command, "--help").exit_code == 0


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cosformer.cli.main", "--help"], capture_output=True, text=True, check=True
    )
    assert "linear time" in done.stdout
