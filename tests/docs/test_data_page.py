"""docs/data.md runs as it stands."""

import re
from pathlib import Path

import pytest
from page_blocks import run_blocks

import cosformer.tasks

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_every_python_block_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("data.md", least=4)


def test_every_name_of_the_page_exists() -> None:
    named = set(re.findall(r"`([A-Z][A-Za-z]+)\(", TEXT))
    assert len(named) > 8
    assert all(hasattr(cosformer.tasks, name) for name in named)
