"""`cosformer tokenizer`: a folder that AutoTokenizer loads, or a clear refusal and no folder."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from cosformer.cli.main import app

TEXT = "the quick brown fox jumps over the lazy dog; thereafter the other fox quickly rests.\n" * 20


def run(*arguments: object):
    return CliRunner().invoke(app, ["tokenizer", *map(str, arguments)])


def plain(output: str) -> str:
    return " ".join(output.replace("│", " ").split())


def test_train(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text(TEXT)
    out = tmp_path / "new" / "tokenizer"
    done = run("train", tmp_path / "text", tmp_path / "b.txt", "--vocab-size", 280, "--out", out, "--max-length", 512)
    assert done.exit_code == 0, done.output
    assert f"280 tokens from {2 * len(TEXT):,} bytes in 2 files" in done.stdout
    loaded = AutoTokenizer.from_pretrained(out)
    assert (len(loaded), loaded.model_max_length) == (280, 512)
    assert loaded.decode(loaded(TEXT).input_ids) == TEXT
    assert [p.name for p in out.parent.iterdir()] == ["tokenizer"]


def test_bytes(tmp_path: Path) -> None:
    done = run("bytes", "--out", tmp_path / "bytes", "--max-length", 64)
    assert done.exit_code == 0, done.output
    loaded = AutoTokenizer.from_pretrained(tmp_path / "bytes")
    assert (len(loaded), loaded.model_max_length) == (259, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt", "--out", "out"], "missing.txt is not there"),
        (["empty.txt", "--out", "out"], "the text is empty"),
        (["text.txt", "--out", "out", "--vocab-size", "100000"], "but this text gives only"),
        (["text.txt", "--out", "out", "--vocab-size", "100"], "256 bytes come first"),
        (["text.txt", "--out", "full"], "is there already and nothing is overwritten"),
        (["full", "--out", "text.txt"], "is there already and nothing is overwritten"),
    ],
    ids=str,
)
def test_train_refuses_and_writes_nothing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("full").mkdir()
    for name, text in (("empty.txt", ""), ("text.txt", TEXT), ("full/kept.txt", TEXT)):
        Path(name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    done = run("train", *arguments)
    assert done.exit_code == 2
    assert message in plain(done.output)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import PreTrainedTokenizerFast

    def fails(self, folder: Path, **_: object) -> None:
        (Path(folder) / "tokenizer.json").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fails)
    done = run("bytes", "--out", tmp_path / "bytes")
    assert done.exit_code == 2
    assert "disk full" in done.output
    assert list(tmp_path.iterdir()) == []


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("cosformer.models")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = run("bytes", "--out", tmp_path / "bytes")
    assert done.exit_code == 2
    assert "needs transformers" in plain(done.output)


def test_other_verbs_do_not_wait_for_transformers() -> None:
    import subprocess
    import sys

    program = (
        "import sys; from cosformer.cli.main import app; app(['env'], standalone_mode=False); "
        "print(sorted({'transformers', 'tokenizers', 'safetensors'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
