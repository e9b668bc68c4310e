"""docs/method.md runs as it stands, and its figures exist and can be drawn again."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from page_blocks import run_blocks

from cosformer.ops import chunked

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "method.md"
TEXT = PAGE.read_text(encoding="utf-8")
FIGURE = re.compile(r"!\[[^\]]+\]\((figures/[^)]+)\)")


def test_every_python_block_runs_in_order():
    run_blocks("method.md", least=5)


def test_links_lead_somewhere():
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in t]
    headings = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    anchors = {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert targets
    for target in targets:
        assert target in anchors if target.startswith("#") else (PAGE.parent / target).is_file(), target


def test_frame_length_is_the_one_in_the_code():
    assert f"frame of {chunked.FRAME} tokens" in TEXT
    kernel = (ROOT / "cosformer" / "ops" / "cpu" / "walk.cpp").read_text(encoding="utf-8")
    assert re.search(rf"\bFRAME = {chunked.FRAME}\b", kernel)


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    pytest.importorskip("matplotlib", reason="the figures are drawn with matplotlib: pip install cosformer[plot]")
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_figure_is_drawn_and_the_same_each_time(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["figures.py", "--out", str(tmp_path / "once")])
    figures.main()
    shown = set(FIGURE.findall(TEXT))
    assert shown
    assert {f"figures/{path.name}" for path in (tmp_path / "once").iterdir()} == shown
    for path in figures.draw_all(tmp_path / "again"):
        data = path.read_bytes()
        assert data == (tmp_path / "once" / path.name).read_bytes(), path.name
        assert data.startswith(b"\x89PNG")
        assert 10_000 < len(data) < 150_000, path.name
        assert not re.search(rb"tEXt|iTXt|tIME", data), f"{path.name} carries metadata"


def test_figures_of_the_page_are_committed():
    shown = FIGURE.findall(TEXT)
    assert shown
    for name in shown:
        assert (PAGE.parent / name).read_bytes().startswith(b"\x89PNG"), name
