"""The Python blocks of a page of the docs, run one after another as a reader would."""

import re
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCS = Path(__file__).parents[1] / "docs"


def run_blocks(name: str, *, least: int) -> None:
    """Every block, in order, in one namespace, lines numbered as on the page. least: how many there must be."""
    page = DOCS / name
    text = page.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python") >= least
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in blocks:
        lines = text.count("\n", 0, block.start(1))
        exec(compile("\n" * lines + block[1], str(page), "exec"), namespace)
