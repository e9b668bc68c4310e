"""docs/models.md runs as it stands."""

import re
from pathlib import Path

import pytest
from page_blocks import run_blocks

from cosformer.models import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch.onnx itself, torch 2.13
def test_every_python_block_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript", reason="the page exports to ONNX: pip install cosformer[test]")
    monkeypatch.chdir(tmp_path)  # it saves models
    monkeypatch.setitem(KINDS, "averaging", None)  # so that what the page registers goes when it ends
    del KINDS["averaging"]
    run_blocks("models.md", least=6)


def test_every_class_of_the_table_exists() -> None:
    import cosformer.models

    named = re.findall(r"^\| `(Cosformer\w+)`", TEXT, re.MULTILINE)
    assert len(named) == 7
    assert all(hasattr(cosformer.models, name) for name in named)
