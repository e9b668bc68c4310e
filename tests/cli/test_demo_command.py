"""`cosformer demo`: trains, compares, writes, measures, reports; goes on after an interruption; overwrites nothing."""

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from cosformer.cli.demo import _samples
from cosformer.cli.main import app
from cosformer.cli.watching import Shown
from cosformer.models import writing
from cosformer.models.writing import load_model


def demo(out: Path) -> Result:
    return CliRunner().invoke(app, ["demo", "--quick", "--out", str(out)])


def events(out: Path) -> list[str]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["event"] for line in lines if line["kind"] == "event"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs beside each other share their prepared data."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def done(base: Path) -> Result:
    return demo(base / "whole")


def test_it_shows_every_part_and_names_the_report(base: Path, done: Result) -> None:
    assert done.exit_code == 0, done.output
    parts = ("1. train", "2. held-out text", "3. what it writes", "4. speed and memory", "The report:")
    places = [done.output.index(part) for part in parts]
    assert places == sorted(places)
    assert done.output.split()[-1] == str(base / "whole" / "report.html")


def test_what_it_leaves(base: Path, done: Result) -> None:
    out = base / "whole"
    result = json.loads((out / "demo.json").read_text())
    assert {"device", "date", "commit", "versions", "command"} <= result.keys()
    bits = result["held_out"]["bits_per_byte"]
    assert list(bits) == ["this model", "6-gram", "gzip -9"]
    assert 6 < bits["this model"] < 8.1  # four steps: hardly better than chance
    assert 1 < bits["6-gram"] < bits["gzip -9"] < 3
    assert [sample["prompt"] for sample in result["samples"]] == ["def ", "import ", "    return "]
    assert all(sample["text"] for sample in result["samples"])
    assert [row["length"] for row in result["rows"]] == [128, 256]
    ours, softmax = (result["generate"]["models"][name]["eager"] for name in ("cosformer", "softmax"))
    assert ours["128"]["cache_bytes"] == ours["256"]["cache_bytes"]
    assert softmax["128"]["cache_bytes"] < softmax["256"]["cache_bytes"]
    page = (out / "report.html").read_text()
    for section in ("numbers", "curves", "samples", "maps", "speed", "settings", "environment"):
        assert f'<section id="{section}"' in page
    assert load_model(out).config.hidden_size == 32


def test_what_the_model_writes_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def writes(*_: Any, said: Callable[[str], None], **__: Any) -> str:
        said("\x1b[2Jgone")
        return "\x1b[2Jgone"

    monkeypatch.setattr(writing, "continue_text", writes)
    shown = io.StringIO()
    model = SimpleNamespace(config=SimpleNamespace(horizon=64))
    found = _samples(Console(file=shown, force_terminal=False), model, None, 20)
    assert "�[2Jgone" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()
    assert found[0] == {"prompt": "def ", "text": "\x1b[2Jgone"}


def test_a_second_call_trains_nothing_again(base: Path, done: Result) -> None:
    out = base / "whole"
    before, weights = (out / "metrics.jsonl").read_bytes(), (out / "model.safetensors").read_bytes()
    (out / "report.html").unlink()
    again = demo(out)
    assert again.exit_code == 0, again.output
    assert "is finished" in again.output
    assert (out / "metrics.jsonl").read_bytes() == before
    assert (out / "model.safetensors").read_bytes() == weights
    assert (out / "report.html").is_file()


def test_interrupted_it_goes_on(base: Path, done: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    out, right = base / "stopped", Shown.line

    def interrupts(self: Shown, line: dict[str, Any]) -> None:
        right(self, line)
        if line["kind"] == "train" and line["step"] == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Shown, "line", interrupts)
        stopped = demo(out)
    assert stopped.exit_code == 130, stopped.output
    assert "the same command goes on" in stopped.output
    assert not (out / "report.html").exists()
    went_on = demo(out)
    assert went_on.exit_code == 0, went_on.output
    assert events(out) == ["start", "interrupted", "resume", "end"]
    whole = load_model(base / "whole").state_dict()
    assert all((value == whole[name]).all() for name, value in load_model(out).state_dict().items())


def test_another_run_is_not_overwritten(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    recipe = (base / "whole" / "recipe.toml").read_text()
    (tmp_path / "recipe.toml").write_text(recipe.replace("steps = 4", "steps = 5"))
    refused = demo(tmp_path)
    assert refused.exit_code == 2
    assert "holds another run (lm-stdlib): remove it" in refused.output
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
