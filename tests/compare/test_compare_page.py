"""The page and its Markdown without a browser: whole, alone, every number and every reason in it."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
import torch
from made_comparison import GROWTH, HOSTILE, LENGTHS, made_result, make_comparison
from page_checks import Checked

from cosformer.compare.looks import ORDER, looks, ordered
from cosformer.compare.maps import WORDS, weight_map, weight_maps, words_as_vectors
from cosformer.compare.markdown import comparison_markdown
from cosformer.compare.page import Comparison, comparison_page, read_comparison
from cosformer.compare.quality import Quality, read_quality
from cosformer.compare.tables import crossover_table, missing_table, over_length
from cosformer.ops.reference import attention_weights
from cosformer.report.marks import spread
from cosformer.report.tables import Entry, Table, html, markdown


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = make_comparison(tmp_path_factory.mktemp("compare"))
    return read_comparison(folder, read_quality([folder / "quality"]))


@pytest.fixture(scope="module")
def page(found: Comparison) -> str:
    return comparison_page(found)


def test_it_parses_loads_nothing_and_no_text_breaks_out(page: str) -> None:
    seen = Checked(page)
    assert len(seen.ids) == len(set(seen.ids))
    assert set(seen.refers) <= set(seen.ids)
    assert all(address.startswith(("#", "data:")) for address in seen.loads)
    assert seen.scripts == 1
    assert HOSTILE in "".join(seen.words)
    assert all(b - a <= 1 for a, b in zip(seen.headings, seen.headings[1:], strict=False)), "a level was skipped"
    outside = set(re.findall(r"https?://[^\s\"'<)]+", page)) - {"http://www.w3.org/2000/svg"}
    assert not outside


def test_every_section_is_there(page: str) -> None:
    for name in ("crossover", "time", "memory", "quality", "maps", "missing-cells", "settings"):
        assert f'<section id="{name}"' in page


def test_the_charts_hold_the_measurements(found: Comparison, page: str) -> None:
    chart = re.search(r'id="chart-time-causal-training" data-chart="(.*?)"', page)
    assert chart is not None
    series = {s["name"]: s["points"] for s in json.loads(unescape(chart[1]))["series"]}
    assert list(series)[:2] == ["cosformer", "softmax"]
    assert series["cosformer"] == [[n, 4.0] for n in LENGTHS]
    assert [n for n, _ in series["softmax"]] == [512, 1_024, 2_048]  # out of memory after that
    assert len(series) == len(GROWTH)


def test_a_cell_without_a_number_says_its_state_and_why(found: Comparison) -> None:
    table = over_length(found.result, "causal", "training", "us_per_token")
    rows = {row[0].text: row[1:] for row in table.rows}
    assert [entry.text for entry in rows["softmax"]] == ["3.2", "6.4", "12.8", "out of memory"]
    assert [entry.text for entry in rows["linformer"]] == ["refused"] * 4
    assert [entry.text for entry in rows["reformer"]][2:] == ["slow", "not tried"]
    assert rows["reformer"][3].why == "slow at 2,048"
    assert rows["cosformer"][1].note == "1.6×"
    assert rows["softmax"][0].note == ""
    assert [row[0].text for row in table.rows if row[1].best] == ["softmax"]
    assert [row[0].text for row in table.rows if row[4].best] == ["cosformer_nocos"]


def test_crossovers_of_the_table(found: Comparison) -> None:
    rows = {
        row[0].text: [entry.text for entry in row[1:]] for row in crossover_table(found.result, "us_per_token").rows
    }
    assert "softmax" not in rows
    assert rows["cosformer"][0] == "640"  # 0.8 n/512 = 1
    assert rows["performer"][1] == "not up to 2,048"
    assert rows["nobody's"][1] == "between 2,048 and 4,096 (softmax: out of memory)"
    assert rows["linformer"][:2] == ["–", "–"]


def test_every_missing_cell_has_its_reason(found: Comparison) -> None:
    rows = [[entry.text for entry in row] for row in missing_table(found.result).rows]
    assert [
        "performer",
        "causal",
        "forward and training",
        "4,096",
        "killed",
        "the process was ended by SIGKILL",
    ] in rows
    assert ["softmax", "causal", "training", "4,096", "out of memory", "–"] in rows
    part = next(row for row in rows if row[0] == "rfa")
    assert part[4:] == ["measured 1× only", "the 4 minutes of the sweep were over"]


@pytest.mark.parametrize(
    "told",
    [
        "36.00%", "35.00% to 37.00%", "skipped: the files of AAN are not there", "lm-text", "2.1", "0123456789ab",
        "a processor, 2 threads", "cosformer compare speed", "2.13.0", "sample_s",
    ],
)  # fmt: skip
def test_page_tells(page: str, told: str) -> None:
    assert told in "".join(Checked(page).words)


def test_markdown_has_the_same_tables(found: Comparison, page: str) -> None:
    text = comparison_markdown(found)
    assert text.count("\n| attention |") == 2 + 8 + 1
    assert "| cosformer | 640 |" in text
    assert "**" in text
    hashes = [digest for _, digest in found.inputs]
    assert len(hashes) == 3
    assert all(digest in text and digest in page for digest in hashes)
    assert not re.search(r"^\|.*[^|\n]$", text, re.MULTILINE), "a row that does not end"
    widths = {}
    for line in text.splitlines():
        if line.startswith("|"):
            widths.setdefault(line.count("|") - line.count("\\|"), 0)
    assert set(widths) == {6, 7, 10}  # lengths or crossovers, what is missing, quality


def test_without_trainings_it_says_how_to_give_them(tmp_path: Path) -> None:
    made_result().write(tmp_path / "speed.json")
    found = read_comparison(tmp_path / "speed.json", Quality())
    assert "No trainings were given" in comparison_page(found)
    assert "## Quality" not in comparison_markdown(found)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cosformer compare speed --out FOLDER"):
        read_comparison(tmp_path, Quality())
    (tmp_path / "speed.json").write_text('{"benchmark": "attention"}')
    with pytest.raises(ValueError, match="is no result of"):
        read_comparison(tmp_path, Quality())
    (tmp_path / "speed.json").write_text("{")
    with pytest.raises(ValueError, match="is not readable"):
        read_comparison(tmp_path, Quality())


def test_a_map_is_the_weights_of_the_definition() -> None:
    q, k = words_as_vectors()
    for mode in ("causal", "bidirectional"):
        causal = mode == "causal"
        ours, softmax = weight_map("cosformer", mode), weight_map("softmax", mode)
        assert ours.weights is not None
        assert softmax.weights is not None
        want = attention_weights(q, k, causal=causal, horizon=len(WORDS))[0, 0]
        assert (ours.weights - want).abs().max() < 1e-5
        scores = (q @ k.mT)[0, 0] / q.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        assert (softmax.weights - scores.softmax(-1)).abs().max() < 1e-5


def test_maps_of_all_or_why_not() -> None:
    causal = {one.attention: one for one in weight_maps(["softmax", "bigbird", "softmax_cudnn", "nobody's"], "causal")}
    assert list(causal) == ["softmax", "bigbird", "nobody's"]
    assert "cannot be causal" in causal["bigbird"].why
    assert "unknown" in causal["nobody's"].why


def test_every_attention_looks_like_itself() -> None:
    all_of_them = looks(ORDER)
    assert len(set(all_of_them.values())) == len(ORDER)
    assert looks(["softmax", "rfa"]) == {name: all_of_them[name] for name in ("softmax", "rfa")}
    few = looks([*ORDER[:5], "mine", "yours"])
    assert len({colour for colour, _ in few.values()}) == 7
    many = looks([*ORDER, *(f"mine {i}" for i in range(5))])
    assert all(1 <= colour <= 12 for colour, _ in many.values())
    assert ordered(["mine", "softmax", "cosformer"]) == ["cosformer", "softmax", "mine"]


def test_names_keep_their_distance() -> None:
    assert spread([10.0, 50.0], 13, 0, 100) == [10.0, 50.0]
    assert spread([50.0, 51.0, 52.0], 13, 0, 100) == [50.0, 63.0, 76.0]
    assert spread([95.0, 99.0], 13, 0, 100) == [87.0, 100.0]
    assert spread([], 13, 0, 100) == []


def test_a_table_sorts_by_values_and_escapes_its_bars() -> None:
    table = Table(
        identity="t", caption="a | b", columns=["name", "n"], rows=[[Entry("x|y"), Entry("∞", value=float("inf"))]]
    )
    assert 'data-value="Infinity"' in html(table)
    assert markdown(table).endswith("|---|---:|\n| x\\|y | ∞ |\n")
    with pytest.raises(ValueError, match="a row of 1 under 2 headings"):
        Table(identity="t", caption="c", columns=["a", "b"], rows=[[Entry("x")]])
