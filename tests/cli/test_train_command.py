"""`cosformer train` and `cosformer recipes` as a user types them."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from cosformer.cli import watching
from cosformer.cli.main import app
from cosformer.cli.watching import Shown
from cosformer.tasks import Progress

SMALL = [
    "model.hidden_size=16", "model.num_hidden_layers=2", "model.num_attention_heads=2", "data.length=32",
    "train.batch=4", "train.warmup_steps=1", "train.log_every=1", "eval.batches=2", "eval.batch=4", "sample.tokens=5",
]  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def words(done: Result) -> str:
    return " ".join(done.output.replace("│", " ").split())


def small(*more: str) -> list[str]:
    return [x for value in [*SMALL, *more] for x in ("--set", value)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_text("a line of words, and then another one\n" * 300)
    return path


def test_trains_your_text_and_tells(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run("train", "lm-text", "--data", str(corpus), "--out", str(out), "--device", "cpu", *small("train.steps=3"))
    assert done.exit_code == 0, done.output
    for told in ("lm-text →", "step 1/3  loss", "tokens/s", "left", "bits/byte", "s of training"):
        assert told in done.output, told
    written = run("generate", str(out), "--prompt", "a line", "--max-new-tokens", "5")
    assert written.exit_code == 0, written.output
    assert json.loads((out / "run.json").read_text())["steps"] == 3
    assert (tmp_path / "data-cache").is_dir()


def test_json_and_quiet(corpus: Path, tmp_path: Path) -> None:
    where = ["--data", str(corpus), "--out", str(tmp_path / "run"), "--cache", str(tmp_path / "elsewhere")]
    done = run("train", "lm-text", *where, "--device", "cpu", "--quiet", "--json", *small("train.steps=1"))
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "run" / "run.json").read_text())
    assert done.stderr == ""
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "data-cache").exists()


def test_your_columns_and_classes(tmp_path: Path) -> None:
    rows = [{"say": f"word {i % 7}", "also": "more", "mood": ["sad", "glad"][i % 2]} for i in range(120)]
    table = tmp_path / "mine.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ["--column", "say", "--column", "also", "--label", "mood", "--classes", "glad,sad"]
    out = ["--out", str(tmp_path / "run"), "--device", "cpu"]
    done = run(
        "train", "classify-text", "--data", str(table), *columns, *out, *small("train.steps=2", "eval.batches=0")
    )
    assert done.exit_code == 0, done.output
    assert "% right" in done.output
    assert json.loads((tmp_path / "run" / "config.json").read_text())["id2label"] == {"0": "glad", "1": "sad"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a recipe"),
        (["--resume"], "name the run's folder with --out"),
        (["lm-txt"], "did you mean lm-text?"),
        (["lm-text"], "name files, folders or patterns with --data"),
        (["lm-enwik8"], "https://mattmahoney.net"),
        (["lm-text", "--data", "nowhere.txt"], "nowhere.txt"),
        (["lm-text", "--set", "model.atention=softmax"], "did you mean model.attention?"),
        (["lm-text", "--set", "train.steps=few"], "use a whole number"),
        (["lm-stdlib", "--device", "tpu"], "use auto, cpu or cuda"),
        (["--resume", "--out", "nothing-here"], "holds no run"),
    ],
    ids=str,
)
def test_refuses(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("train", *arguments)
    assert done.exit_code == 2
    assert message in words(done)
    assert "Traceback" not in done.output


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_saves_and_says_how_to_go_on(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = [
        "--data",
        str(corpus),
        "--out",
        str(out),
        "--device",
        "cpu",
        *small("train.steps=100000", "eval.every=9999"),
    ]
    command = [sys.executable, "-m", "cosformer.cli.main", "train", "lm-text", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        deadline = time.monotonic() + 60
        metrics = out / "metrics.jsonl"
        while time.monotonic() < deadline and not (metrics.exists() and '"train"' in metrics.read_text()):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"go on with: cosformer train --out {out} --resume" in told
    assert "Traceback" not in told
    assert list(out.glob("checkpoint-*"))


def test_a_terminal_gets_one_live_line() -> None:
    screen = io.StringIO()
    watch = Shown(Console(file=screen, force_terminal=True, width=140, color_system=None))
    data = {"name": "text", "splits": {"train": {"tokens": 1000}}, "classes": [*"abcdefgh"]}
    watch.starting({
        "steps": 20, "start": 0, "data": data, "device": "cuda:0", "precision": "bf16", "compiled": True,
        "processes": 2, "recipe": "lm-text", "task": "lm", "out": "runs/x", "parameters": 12_345, "steps_per_epoch": 7,
    })  # fmt: skip
    told = {"loss": 2.5, "tokens_per_second": 1234.0, "share_of_peak": 0.42, "memory_bytes": 3 << 30}
    watch.line({"kind": "train", "step": 10, "learning_rate": 1e-3, **told})
    watch.line({"kind": "eval", "step": 10, "split": "valid", "loss": 2.0, "bits_per_byte": 2.885, "perplexity": 7.4})
    watch.line({"kind": "sample", "step": 10, "prompt": "[b]", "text": "after \x1b[2J it"})
    watch.line({"kind": "train", "step": 20, "learning_rate": 1e-3, **told})
    watch.stopped()
    shown = screen.getvalue()
    assert "20/20 loss 2.5000  valid 2.885 bits/byte  1,234 tokens/s  42% of peak  3.0 GiB  0:00 left" in shown
    assert "train 1,000 tokens; 8 classes (a, b, c, d, e, f, …)" in shown
    assert "step 10  valid 2.885 bits/byte, loss 2.0000" in shown
    assert "[b]after �[2J it" in shown  # neither our markup nor the terminal's codes


def test_each_number_of_an_evaluation_is_told_once() -> None:
    screen = io.StringIO()
    watch = Shown(Console(file=screen, width=140))
    found = {"kind": "eval", "step": 10, "split": "valid", "loss": 2.0, "perplexity": 7.39}
    watch.line(found)
    watch.line({**found, "unknown_share": 0.572})
    watch.line({**found, "bits_per_byte": 2.885})
    assert screen.getvalue().splitlines() == [
        "step 10  valid perplexity 7.39, loss 2.0000",
        "step 10  valid perplexity 7.39, loss 2.0000, 57.2% of its tokens <unk>: no bits per byte",
        "step 10  valid 2.885 bits/byte, loss 2.0000, perplexity 7.39",
    ]


def test_a_translation_stands_apart_from_its_source() -> None:
    """It was "…der etwas anstarrt. a a a", as if one went on from it."""
    screen = io.StringIO()
    watch = Shown(Console(file=screen, width=140))
    watch.starting({
        "steps": 20, "start": 0, "data": {"name": "text", "splits": {}, "classes": []}, "device": "cpu",
        "precision": "fp32", "compiled": False, "processes": 1, "recipe": "mine", "task": "translate", "out": "x",
        "parameters": 1, "steps_per_epoch": 7,
    })  # fmt: skip
    watch.line({"kind": "sample", "step": 10, "prompt": "ein Hund.", "text": "a dog."})
    assert screen.getvalue().splitlines()[-1] == "ein Hund. → a dog."


def test_tokenising_is_told_to_its_end() -> None:
    """Of tables and of texts that are cut, less is read than was expected: the last word was a part of it."""
    screen = io.StringIO()
    watch = Shown(Console(file=screen, width=140))
    for size, done in ((100_000, False), (290_769, False), (290_769, True)):
        watch.preparing(Progress("valid", size, 302_904, 1, 0, done))
    assert screen.getvalue().splitlines() == [
        "tokenising valid: 100,000 of 302,904 bytes", "tokenising valid: 290,769 of 302,904 bytes",
        "tokenised valid: 290,769 bytes",
    ]  # fmt: skip


def test_the_time_left_goes_by_the_pace_of_the_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the first window, which compiles, nor by what an earlier run told."""
    screen, now = io.StringIO(), 0.0
    monkeypatch.setattr(watching.time, "monotonic", lambda: now)
    watch = Shown(Console(file=screen, width=140))
    facts = {
        "steps": 1_000, "start": 0, "data": {"name": "text", "splits": {}, "classes": []}, "device": "cpu",
        "precision": "fp32", "compiled": False, "processes": 1, "recipe": "lm-text", "task": "lm", "out": "x",
        "parameters": 1, "steps_per_epoch": 7,
    }  # fmt: skip
    told = {"kind": "train", "loss": 1.0, "tokens_per_second": 1.0, "share_of_peak": None, "memory_bytes": 0}
    watch.starting(facts)
    for step in range(100, 500, 100):
        now += 90.0 if step == 100 else 10.0
        watch.line({**told, "step": step, "learning_rate": 1e-3})
    left = re.findall(r"(\S+) left", screen.getvalue())
    assert left == ["13:30", "1:20", "1:10", "1:00"]
    watch.line({"kind": "eval", "step": 400, "split": "valid", "loss": 2.0, "perplexity": 7.4})
    watch.starting(facts)  # --pretrain: another run, by another measure
    watch.line({**told, "step": 100, "learning_rate": 1e-3})
    assert "perplexity" not in screen.getvalue().splitlines()[-1]


def test_a_section_in_brackets_is_named_in_help() -> None:
    assert "[pretrain]" in CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).output


def test_recipes_as_a_table_as_json_and_one() -> None:
    shown = run("recipes")
    assert shown.exit_code == 0
    listed = json.loads(run("recipes", "--json").stdout)
    assert len(listed) >= 15
    for one in listed:
        assert one["name"] in shown.output
        assert {"name", "task", "about", "needs", "expect"} <= one.keys()
    printed = run("recipes", "lm-enwik8")
    assert tomllib.loads(printed.stdout)["train"]["steps"] == 1500
    assert "# ours" in printed.stdout
    wrong = run("recipes", "lm-enwik9")
    assert wrong.exit_code == 2
    assert "did you mean lm-enwik8?" in words(wrong)


def test_listing_recipes_does_not_wait_for_transformers() -> None:
    program = "import sys; import cosformer.cli.main; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
