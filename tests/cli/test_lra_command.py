"""`cosformer lra`: what it plans, what it refuses, what its table says."""

import json
from pathlib import Path

import torch
from typer.testing import CliRunner

from cosformer.cli.main import app
from cosformer.sweeps.table import rows_of

SMALL = (
    "model.hidden_size=16", "model.num_hidden_layers=1", "data.length=32", "train.steps=2", "train.batch=4",
    "eval.batches=1", "eval.batch=4", "data.sizes=[16,8,8]", "train.log_every=1",
)  # fmt: skip


def lra(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["lra", *arguments])
    return done.exit_code, done.output


def test_trains_prints_and_writes(tmp_path: Path) -> None:
    sets = [part for one in SMALL for part in ("--set", one)]
    code, words = lra(
        "run", "--tasks", "listops", "--attentions", "cosformer", "--out", str(tmp_path / "q"), "--device", "cpu",
        "--json", str(tmp_path / "kept.json"), *sets,
    )  # fmt: skip
    assert code == 0, words
    assert "1/1 listops-cosformer-0: done: test accuracy" in words
    assert f"wrote {tmp_path / 'q' / 'table.json'}" in words
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["cells"][0]["state"] == "done"
    assert kept["environment"]["versions"]["torch"]
    code, words = lra("table", str(tmp_path / "kept.json"), "--markdown")
    assert code == 0
    assert words.startswith("| | listops (test accuracy) |\n")
    code, words = lra("table", str(tmp_path / "q"), "--json")
    assert json.loads(words)["table"] == rows_of(kept["cells"])
    code, words = lra("table", str(tmp_path / "q"), str(tmp_path / "kept.json"), "--json")
    assert json.loads(words)["table"] == rows_of(kept["cells"])
    again = ("run", "--tasks", "listops", "--attentions", " cosformer", "--out", str(tmp_path / "q"), *sets)
    code, words = lra(*again)
    assert (code, "1 runs in" in words, "1 of them done" in words) == (0, True, True)
    code, words = lra(*again, "--quiet")
    assert (code, "wrote" in words, "listops (test accuracy)" in words) == (0, False, True)


def test_refuses_before_anything_runs(tmp_path: Path) -> None:
    for arguments, wanted in (
        (("--tasks", "listop"), "no task 'listop'"),
        (("--attentions", "cosforme"), "did you mean cosformer"),
        (("--data", "text"), "write the task, =, and where its files are"),
        (("--tasks", "listops", "--data", "listops=x"), "listops is generated and reads no files, got x"),
        (("--tasks", "listops", "--data", "text=x"), "data of 'text', which is not among the tasks listops"),
        (("--seeds", "a"), "whole numbers"),
        (("--set", "train.step=5"), "did you mean train.steps"),
        (("--device", "tpu"), "use auto, cpu or cuda"),
        *[(("--device", "cuda"), "torch sees no CUDA device")] * (not torch.cuda.is_available()),
        (("--seeds", "0,0"), "a seed is named twice"),
        (("--json", str(tmp_path)), "cannot be written (it is a folder)"),
    ):
        code, words = lra("run", "--out", str(tmp_path / "q"), *arguments)
        assert code == 2, words
        assert wanted in " ".join(words.replace("│", " ").split()), words
    assert not (tmp_path / "q").exists()


def test_a_table_that_is_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    for name, wanted in (("none", "is not there"), ("other.json", "is no table of a queue")):
        code, words = lra("table", str(tmp_path / name))
        assert code == 2
        assert wanted in " ".join(words.replace("│", " ").split())
