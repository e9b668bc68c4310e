"""docs/compare.md runs as it stands, and names the states a cell can have."""

import re
from pathlib import Path

import pytest
from page_blocks import DOCS, run_blocks

from cosformer.compare.results import DONE, STATES, WAITING


def test_every_python_block_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("compare.md", least=2)
    assert (tmp_path / "compared" / "compare.html").is_file()


def test_every_state_is_explained() -> None:
    text = (DOCS / "compare.md").read_text(encoding="utf-8")
    told = {name for row in re.findall(r"^\| ([a-z, ]+) \| ", text, re.MULTILINE) for name in row.split(", ")}
    assert set(STATES) - {DONE, WAITING} == told - {"cell"}
