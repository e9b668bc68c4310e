"""The command as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
    ],
    ids=str,
)
def test_bench_refuses(arguments: list[str], message: str) -> None:
    done = run("bench", "attention", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output


def test_demo_shows_and_writes(tmp_path: Path) -> None:
    done = run("demo", "--quick", "--out", str(tmp_path / "demo"))
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["stream"]["worst_difference"] < 1e-5
    for part in ("1. exact", "2. fast", "3. streaming"):
        assert part in done.stdout


HELP = {
    (): {"env", "bench", "demo"},
    ("bench",): {"attention", "precision"},
    ("bench", "precision"): {"--steps", "--backend", "--json"},
    ("bench", "attention"): {
        "--device", "--lengths", "--tokens", "--dtype", "--heads", "--width", "--repeats", "--backend", "--memory",
        "--json", "--plot",
    },
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
