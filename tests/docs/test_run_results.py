"""docs/run_results.py on two small runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_data import tiny

from cosformer.training import evaluate, train

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
def test_runs_become_one_result_with_what_they_differ_in(tmp_path: Path) -> None:
    for attention in ("cosformer", "softmax"):
        recipe = tiny("classify-sst2", tmp_path / "data", f"model.attention={attention}")
        train(recipe, tmp_path / "runs" / attention, device="cpu")
    evaluate(tmp_path / "runs" / "softmax", device="cpu")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "softmax.parallel").write_text("8")  # as a queue leaves it
    out, picture = tmp_path / "found.json", tmp_path / "curves.png"
    runs = [tmp_path / "runs" / name for name in ("cosformer", "softmax")]
    command = [sys.executable, ROOT / "docs" / "run_results.py", out, *runs]
    place = {**os.environ, "PYTHONPATH": str(ROOT)}  # as results/make.sh sets it
    subprocess.run([*command, "--plot", picture], check=True, cwd=ROOT, env=place)
    found = json.loads(out.read_text())
    assert found["differ_in"] == ["model.attention"]
    assert found["recipe"]["data.path"] == ["data"]
    assert str(tmp_path / "data") not in out.read_text()  # no path of this machine
    assert [run["model.attention"] for run in found["runs"].values()] == ["cosformer", "softmax"]
    assert [run["parallel"] for run in found["runs"].values()] == [1, 8]
    assert found["runs"]["softmax"]["evaluations"]["valid"]["metrics"]["examples"] == 60
    assert found["runs"]["cosformer"]["held_out"][0]["step"] == 2
    assert len(found["runs"]["cosformer"]["training_loss"]) == 2
    assert picture.read_bytes()[:4] == b"\x89PNG"
    other = tiny("classify-sst2", tmp_path / "more", "train.steps=2")
    (tmp_path / "more" / "dev.tsv").write_text("sentence\tlabel\na dog\t1\na cat\t0\n")
    train(other, tmp_path / "third", device="cpu")
    refused = subprocess.run(
        [*command, tmp_path / "third"], capture_output=True, text=True, cwd=ROOT, env=place, check=False
    )
    assert refused.returncode != 0
    assert "third has other data" in refused.stderr
