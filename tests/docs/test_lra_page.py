"""docs/lra.md runs as it stands, and its samples are what the generator draws."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import cosformer.tasks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lra.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_python_block_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = list(BLOCK.finditer(TEXT))
    assert len(blocks) == TEXT.count("```python") >= 2
    namespace: dict[str, object] = {"__name__": "lra"}
    for block in blocks:
        lines = TEXT.count("\n", 0, block.start(1))
        exec(compile("\n" * lines + block[1], str(PAGE), "exec"), namespace)


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
