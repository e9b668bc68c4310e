"""results/profile_steps.py: steps of a recipe, as they are trained."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "results" / "profile_steps.py"


def test_says_where_a_step_goes(tmp_path: Path) -> None:
    small = ("data.sizes=[64,8,8]", "data.length=600", "data.fill=false", "train.batch=1", "eval.batch=4",
             "model.hidden_size=16", "model.num_attention_heads=1", "model.num_hidden_layers=1")  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "p.json"), "lra-listops", *small], cwd=tmp_path, text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[1]), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "p.json").read_text())
    launches = {row["name"]: row["launches"] for row in found["kernels"]}
    assert launches["cosformer::attention_backward"] == 1  # of one block, in each of the steps
    assert f"{found['ms']:.3f} ms" in done.stdout
