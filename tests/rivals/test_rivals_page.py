"""docs/rivals.md runs as it stands, and its table names every rival."""

import dataclasses
import re

from page_blocks import DOCS, run_blocks

from cosformer.models import KINDS
from cosformer.models.kinds import find_others
from cosformer.rivals.linear_positions import PositionedKind, PositionOptions

TEXT = (DOCS / "rivals.md").read_text(encoding="utf-8")


def test_every_python_block_runs_in_order() -> None:
    run_blocks("rivals.md", least=5)


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
