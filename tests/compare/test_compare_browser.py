"""The comparison in headless Chromium: opens from a file, no errors, at 400 and 1,600 pixels, light and dark."""

import re
from pathlib import Path

import pytest
from browser import VIEWS, check_themes, check_whole, needs_browser, usable, used
from made_comparison import make_comparison

from cosformer.compare.page import comparison_page, read_comparison
from cosformer.compare.quality import read_quality

pytestmark = needs_browser

USE = """
    const names = (table) => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
    const table = document.getElementById("time-causal-training");
    const heads = [...table.querySelectorAll("thead th")];
    seen.order = [names(table)];
    for (const click of [4, 4, 0]) {
      heads[click].querySelector("button").click();
      seen.order.push(names(table));
    }
    seen.sorted = heads.map((head) => head.getAttribute("aria-sort"));
    const figure = document.getElementById("chart-time-causal-training");
    const svg = [...figure.querySelectorAll("svg.wide, svg.narrow")].filter(shown);
    seen.charts = svg.length;
    const tip = figure.querySelector(".tip");
    point(svg[0], "pointermove", 0.12, 0.5);
    seen.hover = tip.textContent;
    const box = tip.getBoundingClientRect();
    seen.inside = box.left >= 0 && box.right <= innerWidth;
    point(svg[0], "pointerleave", 0.5, 0.5);
    const lines = () => [...figure.querySelectorAll("polyline.line")].filter(shown).length;
    seen.lines = [lines()];
    const toggle = [...figure.querySelectorAll(".legend button")].find((b) => b.textContent === "softmax");
    toggle.click();
    seen.pressed = toggle.getAttribute("aria-pressed");
    seen.lines.push(lines());
    point(svg[0], "pointermove", 0.12, 0.5);
    seen.without = tip.textContent;
    point(svg[0], "pointerleave", 0.5, 0.5);
    toggle.click();
    seen.lines.push(lines());
    const scatter = document.querySelector("#chart-quality-listops");
    const plot = [...scatter.querySelectorAll("svg.wide, svg.narrow")].filter(shown)[0];
    plot.focus();
    seen.scatter = scatter.querySelector(".tip").textContent;
    plot.blur();
    const labels = [...document.querySelectorAll("#chart-time-causal-training text.end")].filter(shown)
      .map((t) => t.getBoundingClientRect());
    seen.labels = labels.length;
    seen.overlaps = labels.filter((a, i) => labels.some((b, j) =>
      i < j && a.top < b.bottom - 3 && b.top < a.bottom - 3)).length;
    const map = document.querySelector(".side-by-side img");
    point(map, "pointermove", 0.001, 0.999);
    seen.map = document.querySelector(".readout").textContent;
    const colours = new Set([...figure.querySelectorAll(".legend .key")].map((k) => getComputedStyle(k).color));
    seen.colours = colours.size;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_comparison(tmp_path_factory.mktemp("browser"))
    path = folder / "compare.html"
    path.write_text(comparison_page(read_comparison(folder, read_quality([folder / "quality"]))))
    return usable(path, USE)


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_no_errors_and_nothing_sticks_out(page: Path, width: int, dark: bool) -> None:
    seen = used(page, width, dark)
    check_whole(seen, width)
    assert seen["charts"] == 1
    assert seen["inside"]


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_both_themes_can_be_read(page: Path, width: int, dark: bool) -> None:
    check_themes(used(page, width, dark), dark)


def test_a_heading_sorts_and_cells_without_a_number_stay_last(page: Path) -> None:
    seen = used(page, 1_600, True)
    asked, up, down, by_name = seen["order"]
    assert asked[:3] == ["cosformer", "softmax", "cosformer_nocos"]
    lacking = {"softmax", "reformer", "performer", "linformer", "bigbird"}
    assert up[:3] == ["cosformer_nocos", "cosformer", "linear"]
    assert down[:6] == up[:6][::-1]
    assert set(up[6:]) == set(down[6:]) == lacking
    assert by_name == sorted(by_name)
    assert seen["sorted"] == ["ascending", "none", "none", "none", "none"]


def test_pointing_at_lines_tells_what_was_measured_there(page: Path) -> None:
    seen = used(page, 1_600, True)
    assert seen["hover"].startswith("tokens of a sequence 512cosformer 4softmax 3.2cosformer_nocos 3.6")
    assert "linformer" not in seen["hover"]
    assert seen["scatter"] == "tokens/s in training 3,000linear 0.38 accuracy"


def test_the_legend_hides_and_shows_a_line(page: Path) -> None:
    for width, dark in VIEWS:
        seen = used(page, width, dark)
        before, hidden, again = seen["lines"]
        assert before == again == hidden + 1 > 5
        assert seen["pressed"] == "false"
        assert "softmax" not in seen["without"]
        assert seen["colours"] == 9  # a colour of its own for each line


def test_names_at_the_ends_of_lines_do_not_overlap(page: Path) -> None:
    seen = used(page, 1_600, True)
    assert seen["labels"] == 9
    assert seen["overlaps"] == 0
    assert used(page, 400, False)["labels"] == 0  # no room: the legend names them


def test_pointing_at_a_map_names_both_words(page: Path) -> None:
    assert re.fullmatch(r"cosformer: “\.” \(73\) looks at “the” \(0\), 73 away: .+", used(page, 400, False)["map"])
