"""`cosformer compare train`: what it plans and refuses; a queue of it runs."""

import json
from pathlib import Path

from training_data import TINY, make_data
from typer.testing import CliRunner

from cosformer.cli.main import app


def compare_train(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["compare", "train", *arguments])
    return done.exit_code, " ".join(done.output.replace("│", " ").split())


def test_variants_start_from_one_before(tmp_path: Path) -> None:
    wiki, sst2 = make_data("wikitext-2", tmp_path / "wiki")[0], make_data("sst2", tmp_path / "sst2")[0]
    small = [part for one in TINY for part in ("--set", one, "--set-before", one)]
    out = tmp_path / "queue"
    code, words = compare_train(
        "classify-sst2", "--before", "mlm-wikitext2", "--variant", "linear: model.attention=linear", "--device", "cpu",
        "--data", f"classify-sst2={sst2}", "--data", f"mlm-wikitext2={wiki}", "--out", str(out), *small,
        "--set-before", "tokenizer.vocab_size=270", "--set", "tokenizer.vocab_size=270",
    )  # fmt: skip
    assert code == 0, words
    cells = json.loads((out / "table.json").read_text())["cells"]
    assert [(cell["run"], cell["state"]) for cell in cells] == [
        ("mlm-wikitext2-linear-0", "done"), ("classify-sst2-linear-0", "done"),
    ]  # fmt: skip


def test_refuses_before_anything_runs(tmp_path: Path) -> None:
    for arguments, wanted in (
        (("lm-stdli",), "did you mean lm-stdlib"),
        (("lm-stdlib",), "a queue without any variant"),
        (("lm-stdlib", "--ablation", "feature"), "use some of features, cos, positions"),
        (("lm-stdlib", "--ablation", "cos", "--data", "classify-sst2=x"), "is not among lm-stdlib"),
        (("lm-stdlib", "--ablation", "cos", "--data", "lm-stdlib"), "once for each"),
        (("lm-stdlib", "lm-stdlib", "--ablation", "cos"), "two recipes are called 'lm-stdlib'"),
        (("lm-stdlib", "--before", "lm-stdlib", "--ablation", "cos"), "two jobs are called lm-stdlib-with_cos-0"),
        (("lm-stdlib", "--ablation", "cos", "--set", "seed=3"), "take their seeds from --seeds"),
    ):
        code, words = compare_train(*arguments, "--out", str(tmp_path / "q"))
        assert code == 2, words
        assert wanted in words, words
    assert not (tmp_path / "q").exists()
