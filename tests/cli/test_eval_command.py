"""`cosformer eval` as a person calls it."""

import json
from pathlib import Path

import pytest
from training_data import tiny
from typer.testing import CliRunner, Result

from cosformer.cli.main import app
from cosformer.training import train


def words(done: Result) -> str:
    return " ".join(done.output.replace("│", " ").split())


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
def test_a_table_for_people_and_json_for_programs(tmp_path: Path) -> None:
    run = tmp_path / "small"
    train(tiny("classify-text", tmp_path / "data"), run, device="cpu")
    shown = CliRunner().invoke(
        app, ["eval", str(run), "--device", "cpu", "--split", "valid", "--cache", str(tmp_path / "other")]
    )
    assert shown.exit_code == 0, shown.output
    assert "tokenised valid: " in shown.stderr
    assert "accuracy" in shown.stdout
    assert "95%" in shown.stdout
    assert "all of valid; texts cut to 32 tokens" in shown.stdout
    machine = CliRunner().invoke(app, ["eval", str(run), "--device", "cpu", "--split", "valid", "--json"])
    result = json.loads(machine.stdout)
    assert result["metrics"]["accuracy"] == json.loads((run / "eval-valid.json").read_text())["metrics"]["accuracy"]
    for device in ("gpu", "cuda:9"):  # it was torch's own list, or a traceback
        refused = CliRunner().invoke(app, ["eval", str(run), "--device", device])
        assert refused.exit_code == 2
        assert f"'{device}' is not on this machine: use one of cpu" in words(refused)
    refused = CliRunner().invoke(app, ["eval", str(tmp_path / "data")])
    assert refused.exit_code == 2
    assert "no finished run" in words(refused)
    assert "0:00:00" not in refused.output  # no bar of nothing
