"""`cosformer compare` as a person meets it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_comparison import make_comparison
from typer.testing import CliRunner, Result

from cosformer.cli import compare as command
from cosformer.cli.main import app
from cosformer.compare import sweep as sweep_module

TINY = ["--lengths", "16,32", "--heads", "1", "--width", "8", "--tokens", "32", "--visits", "1", "--device", "cpu"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("swept")
    return out, run("speed", *TINY, "--out", str(out), "--attentions", "cosformer,softmax,linear", "--mode", "causal")


def test_speed_measures_and_says_where_softmax_is_overtaken(swept: tuple[Path, Result]) -> None:
    out, done = swept
    assert done.exit_code == 0, done.output
    assert "it is faster than softmax" in " ".join(done.output.split())
    found = json.loads((out / "speed.json").read_text())
    assert [cell["state"] for cell in found["cells"]] == ["done"] * 12
    assert all(cell["us_per_token"] > 0 for cell in found["cells"])
    assert {cell["mode"] for cell in found["cells"]} == {"causal"}


def test_json_is_the_file(swept: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = swept
    monkeypatch.setattr(sweep_module, "Nursery", None)  # all is measured already
    chosen = ["--out", str(out), "--attentions", "cosformer,softmax,linear", "--mode", "causal", "--json"]
    done = run("speed", *TINY, *chosen)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads((out / "speed.json").read_text())


def test_report_writes_page_and_markdown(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path)
    done = run("report", str(folder), "--quality", str(folder / "quality"), "--markdown", str(folder / "docs" / "c.md"))
    assert done.exit_code == 0, done.output
    assert "wrote" in done.output
    assert (folder / "compare.html").read_text().startswith("<!DOCTYPE html>")
    assert (folder / "docs" / "c.md").read_text().startswith("# Attentions compared")


def test_plain_compare_measures_with_a_limit_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measured(sweep, out, **_):
        asked.append(sweep)
        make_comparison(out)

    monkeypatch.setattr(sweep_module, "sweep_folder", measured)
    done = run("--out", str(tmp_path), "--device", "cpu")
    assert done.exit_code == 0, done.output
    (sweep,) = asked
    assert sweep.lengths == (512, 1_024, 2_048, 4_096, 8_192)
    assert sweep.minutes == command.QUICK_MINUTES < 4
    assert len(sweep.attentions) >= 10
    assert (tmp_path / "compare.html").is_file()


def test_interrupted_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_module, "sweep_folder", stopped)
    done = run("speed", "--out", str(tmp_path), "--device", "cpu")
    assert done.exit_code == 130
    assert "the same command goes on" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed", "--device", "tpu"], "not on this machine"),
        (["speed", "--attentions", "nobody"], "attention nobody is unknown"),
        (["speed", "--lengths", "many"], "give whole numbers"),
        (["speed", "--mode", "sideways"], "use causal, bidirectional or both"),
        (["speed", "--dtype", "int8"], "use one of fp32"),
        (["speed", "--import", "no_such_module"], "no module named 'no_such_module': install it"),
        (["report", "nowhere"], "is not there"),
    ],
    ids=str,
)
def test_compare_refuses(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda cell: cell.pop("samples"), "is done without samples"),
        (lambda cell: cell.pop("attention"), "TypeError"),
        (lambda cell: cell.update(state="odd"), "cells that are odd"),
    ],
)  # fmt: skip
def test_a_damaged_result_is_named(change: Callable[[dict[str, Any]], Any], said: str, tmp_path: Path) -> None:
    path = make_comparison(tmp_path) / "speed.json"
    found = json.loads(path.read_text())
    change(next(cell for cell in found["cells"] if cell["state"] == "done"))
    path.write_text(json.dumps(found))
    done = run("report", str(tmp_path))
    assert done.exit_code == 2
    words = " ".join(done.output.replace("│", " ").split())
    assert "damaged or of another version" in words
    assert said in words
