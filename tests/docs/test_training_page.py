"""docs/training.md runs as it stands."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from page_blocks import run_blocks

from cosformer.training import RunSummary, recipe_names
from cosformer.training.recipe_sections import SECTIONS

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_every_python_block_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("training.md", least=4)


def test_every_field_and_recipe_of_the_page_exists() -> None:
    named = set(re.findall(r"\b(train|eval|data)\.([a-z_]+)", TEXT))
    assert len(named) > 8
    for section, name in named:
        assert name in {field.name for field in fields(SECTIONS[section])}, f"{section}.{name}"
    for name in re.findall(r"(?:cosformer|main) train ([a-z]+-[a-z0-9]+) ", TEXT):
        assert name in recipe_names()
    for name in re.findall(r"`(seconds_[a-z_]+)`", TEXT):
        assert name in {field.name for field in fields(RunSummary)}
