"""docs/lra.md runs as it stands, and its samples are what the generator draws."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from page_blocks import run_blocks

import cosformer.tasks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lra.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_every_python_block_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("lra.md", least=3)


def test_every_source_of_the_page_exists() -> None:
    named = set(re.findall(r"`(lra-[a-z]+)`", TEXT))
    assert named == {name for name in cosformer.tasks.NAMED if name.startswith("lra-")}
    assert len(named) == 5


def test_the_samples_are_drawn_by_this_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures: pip install cosformer[plot]")
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    from lra_pictures import pathfinder

    assert "(figures/lra-pathfinder.png)" in TEXT
    with image.open(ROOT / "docs" / "figures" / "lra-pathfinder.png") as stored:
        assert np.array_equal(np.asarray(stored.convert("L")), np.asarray(pathfinder()))
