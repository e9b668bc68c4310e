"""docs/rivals.md runs as it stands, and its table names every rival."""

import dataclasses
import re
from pathlib import Path

from cosformer.models import KINDS
from cosformer.models.kinds import find_others
from cosformer.rivals.linear_positions import PositionedKind, PositionOptions

PAGE = Path(__file__).parents[2] / "docs" / "rivals.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_python_block_runs_in_order() -> None:
    blocks = list(BLOCK.finditer(TEXT))
    assert len(blocks) == TEXT.count("```python") == 5
    namespace: dict[str, object] = {"__name__": "rivals"}
    for block in blocks:
        lines = TEXT.count("\n", 0, block.start(1))  # so that a traceback names the line of the page
        exec(compile("\n" * lines + block[1], str(PAGE), "exec"), namespace)


def test_the_table_has_every_rival_and_its_options() -> None:
    find_others()
    table, section = TEXT.split("## Positions of the linear ones")
    rows = {row[0]: row[1] for row in re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", table, re.MULTILINE)}
    rivals = {name: kind for name, kind in KINDS.items() if kind.__module__.startswith("cosformer.rivals")}
    assert len(rivals) == 9
    assert rivals.keys() <= rows.keys()
    common = {field.name for field in dataclasses.fields(PositionOptions)}
    for name, kind in rivals.items():
        told = re.findall(r"`(\w+)`", rows[name])
        own = {field.name for field in dataclasses.fields(kind.Options)}
        if issubclass(kind, PositionedKind):
            assert "positions" in rows[name], name
            own -= common
        assert sorted(told) == sorted(own), name
    section = section.split("\n## ")[0]
    assert {
        option for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for option in row.split("`")[1::2]
    } == common
