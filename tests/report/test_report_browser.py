"""The page of a run in headless Chromium: no errors, nothing sticks out, colours that can be read, and it answers."""

import re
from pathlib import Path

import pytest
from browser import VIEWS, check_themes, check_whole, needs_browser, usable, used
from made_run import make_run

from cosformer.report import write_report

pytestmark = needs_browser

USE = """
    const svg = [...document.querySelectorAll("#chart-loss svg")].filter(shown);
    seen.charts = svg.length;
    const tip = document.querySelector("#chart-loss .tip");
    seen.before = tip.hidden;
    point(svg[0], "pointermove", 0.5, 0.5);
    seen.hover = tip.textContent;
    const [box, plot] = [tip.getBoundingClientRect(), document.body.getBoundingClientRect()];
    seen.inside = box.left >= plot.left && box.right <= plot.right;
    point(svg[0], "pointerleave", 0.5, 0.5);
    seen.after = tip.hidden;
    svg[0].focus();
    for (let i = 0; i < 30; i += 1) svg[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
    seen.keys = tip.textContent;
    svg[0].blur();
    const map = document.querySelector(".heads img");
    point(map, "pointermove", 0.01, 0.999);
    seen.map = document.querySelector(".readout").textContent;
    point(map, "pointermove", 0.999, 0.01);
    seen.future = document.querySelector(".readout").textContent;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return usable(write_report(make_run(tmp_path_factory.mktemp("browser") / "run")), USE)


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_no_errors_and_nothing_sticks_out(page: Path, width: int, dark: bool) -> None:
    seen = used(page, width, dark)
    check_whole(seen, width)
    assert seen["charts"] == 1  # the wide one or the narrow one


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_both_themes_can_be_read(page: Path, width: int, dark: bool) -> None:
    check_themes(used(page, width, dark), dark)


def test_pointing_at_a_curve_tells_its_numbers(page: Path) -> None:
    seen = used(page, 1_600, True)
    assert seen["before"]
    assert seen["hover"] == "step 18training 2.496held out 2.406 (at 20)"
    assert seen["inside"]
    assert seen["after"]
    assert seen["keys"].startswith("step 2training")


def test_pointing_at_a_map_names_both_tokens(page: Path) -> None:
    seen = used(page, 400, False)
    assert re.fullmatch(r"layer 0, head 0: “.+” \(\d+\) looks at “d” \(0\), \d+ away: .+", seen["map"]), seen["map"]
    assert seen["future"].endswith("not at all")
