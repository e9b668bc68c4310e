"""docs/data.md runs as it stands."""

import re
from pathlib import Path

import pytest

import cosformer.tasks

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_python_block_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = list(BLOCK.finditer(TEXT))
    assert len(blocks) == TEXT.count("```python") >= 4
    namespace: dict[str, object] = {"__name__": "data"}
    for block in blocks:
        lines = TEXT.count("\n", 0, block.start(1))
        exec(compile("\n" * lines + block[1], str(PAGE), "exec"), namespace)


def test_every_name_of_the_page_exists() -> None:
    named = set(re.findall(r"`([A-Z][A-Za-z]+)\(", TEXT))
    assert len(named) > 8
    assert all(hasattr(cosformer.tasks, name) for name in named)
