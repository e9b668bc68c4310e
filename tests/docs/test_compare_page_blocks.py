"""docs/compare.md runs as it stands, and names the states a cell can have."""

import re
from pathlib import Path

import pytest
from page_blocks import DOCS, run_blocks
from typer.testing import CliRunner

from cosformer.cli.main import app
from cosformer.compare.results import DONE, STATES, WAITING

RESULTS = DOCS.parent / "results"


def test_every_python_block_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("compare.md", least=2)
    assert (tmp_path / "compared" / "compare.html").is_file()


def test_the_committed_comparison_is_what_the_command_writes(tmp_path: Path) -> None:
    """With the quality of all that is committed: a new result file wants a new docs/compare-cpu.md."""
    written, measured = tmp_path / "compare.md", RESULTS / "compare-cpu_epyc-2c_2026-11.json"
    words = ["compare", "report", str(measured), "--quality", str(RESULTS), "--markdown", str(written)]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "compare.html")])
    assert done.exit_code == 0, done.output
    how = (
        f"make it again: cosformer {' '.join(words[:3]).replace(str(DOCS.parent), '.')} --markdown docs/compare-cpu.md"
    )
    assert written.read_text(encoding="utf-8") == (DOCS / "compare-cpu.md").read_text(encoding="utf-8"), how


def test_every_state_is_explained() -> None:
    text = (DOCS / "compare.md").read_text(encoding="utf-8")
    told = {name for row in re.findall(r"^\| ([a-z, ]+) \| ", text, re.MULTILINE) for name in row.split(", ")}
    assert set(STATES) - {DONE, WAITING} == told - {"cell"}
