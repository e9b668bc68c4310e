"""The page without a browser: it parses, stands alone, tells every number; no text breaks out of it."""

import base64
import json
import os
import re
import struct
import zlib
from html import unescape
from pathlib import Path

import pytest
import torch
from made_run import HOSTILE, make_run
from page_checks import Checked
from training_data import tiny
from typer.testing import CliRunner

from cosformer.cli.main import app
from cosformer.models import CosformerConfig, CosformerForConditionalGeneration
from cosformer.report import read_run, report_page, write_report
from cosformer.report.charts import Chart, Series, figure, log_ticks, short, ticks
from cosformer.report.pixels import map_image
from cosformer.report.sections import samples
from cosformer.report.text import visible
from cosformer.training import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return report_page(read_run(run))


def test_it_parses_and_everything_referred_to_is_there(page: str) -> None:
    found = Checked(page)
    assert len(found.ids) == len(set(found.ids))
    assert {"numbers", "curves", "samples", "maps", "speed", "settings", "environment"} <= set(found.ids)
    assert found.refers
    assert set(found.refers) <= set(found.ids)
    assert found.headings[0] == 1
    assert all(b - a <= 1 for a, b in zip(found.headings, found.headings[1:], strict=False)), "a level was skipped"


def test_it_loads_nothing(page: str) -> None:
    for address in Checked(page).loads:
        assert address.startswith(("#", "data:")), address
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert "@import" not in style[1]
    assert "url(" not in style[1]
    outside = set(re.findall(r"https?://[^\s\"'<)]+", page)) - {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not outside


def test_a_text_cannot_break_out(page: str) -> None:
    assert Checked(page).scripts == 1
    assert "window.broken" in page
    assert "\x00" not in page
    assert "\x1b" not in page
    assert "A model for <tests> & nothing else." in "".join(Checked(page).words)
    assert visible(HOSTILE).startswith('</pre><script>window.broken = 1</script> & "quotes" ␀␛[31m\ttab\n')


@pytest.mark.parametrize(
    "told",
    [
        "lm-test", "12,345", "16 wide", "2.900", "6-gram", "gzip", "40 steps", "held-out bits per byte", "ab" * 32,
        "2.13.0", "cosformer train lm-test", "learning_rate", "2.0× at 1,024", "step 20", "Finished:",
        "2 threads", "0123456789ab",
    ],
)  # fmt: skip
def test_it_tells(page: str, told: str) -> None:
    assert told in "".join(Checked(page).words)


def test_every_picture_has_words(page: str) -> None:
    pictures = Checked(page).images
    maps = [x for x in pictures if "src" in x]
    charts = [x for x in pictures if "src" not in x]
    assert len(maps) == 2 * 2
    assert len(charts) == 2 * 5 + 3  # wide and narrow; small ones once
    assert all(x["alt"] for x in maps)
    assert all(len(x["aria-label"] or "") > 30 for x in charts)


def test_the_curve_is_that_of_the_run(run: Path, page: str) -> None:
    found = re.search(r'id="chart-loss" data-chart="(.*?)"', page)
    assert found is not None
    numbers = json.loads(unescape(found[1]))
    train = [line for line in read_run(run).lines if line["kind"] == "train"]
    assert [x for x, _ in numbers["series"][0]["points"]] == [line["step"] for line in train]
    assert [y for _, y in numbers["series"][0]["points"]] == pytest.approx([line["loss"] for line in train], rel=1e-5)


def test_a_run_that_is_not_finished(tmp_path: Path) -> None:
    page = report_page(read_run(make_run(tmp_path / "run", finished=False, with_demo=False)))
    words = "".join(Checked(page).words)
    assert "This run is not finished: it has come to step 40" in words
    assert "maps are drawn then" in words
    assert "Speed and memory" not in words


def test_a_line_that_is_being_written_is_left_out_and_a_damaged_one_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False, with_demo=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert read_run(run).lines[-1]["event"] == "end"
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match="line 27 is no line of metrics"):
        read_run(run)


def test_the_command(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(run), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert str(write_report(run)) == str(run / "report.html")
    monkeypatch.setenv("COLUMNS", "300")
    refused = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert refused.exit_code == 2
    assert "has no recipe.toml: it is no run" in refused.output


def test_ticks_are_round_and_around() -> None:
    assert ticks(0, 60, 7) == [0, 10, 20, 30, 40, 50, 60]
    assert ticks(2.1, 4.4, 5) == [2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
    assert ticks(3, 3, 5)[0] < 3 < ticks(3, 3, 5)[-1]
    assert log_ticks(0.02, 50) == [0.01, 0.1, 1, 10, 100]
    assert [short(x) for x in (0, 0.0005, 3.14159, 12_000, 1.5e6, 2e9)] == [
        "0",
        "0.0005",
        "3.14",
        "12,000",
        "1.5M",
        "2G",
    ]


def test_charts_leave_out_what_cannot_be_drawn() -> None:
    points = [(float(i), float(i)) for i in range(1_000)]
    broken = [(1.0, float("nan")), (2.0, float("inf")), (0.0, 1.0)]
    chart = Chart(
        identity="c", title="t", x="x", y="y", series=[Series(name="a", points=[*points, *broken])], log_x=True
    )
    drawn = figure(chart)
    assert "nan" not in drawn
    assert "inf" not in drawn.replace("info", "")
    assert drawn.count(",") < 3_000
    nothing = Chart(identity="c", title="t", x="x", y="y", series=[Series(name="a", points=broken[:2])])
    assert figure(nothing) == ""


def test_a_map_is_the_weights() -> None:
    """An even row is faint, early or late; one that looks at a single token is opaque there."""
    weights = torch.zeros(16, 16)
    weights[15] = 1 / 16
    weights[14, 3] = 7.0  # without a denominator rows need not sum to 1
    address = map_image(weights, causal=True)
    data = base64.b64decode(address.partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + content)
        chunks[name], at = content, at + 12 + size
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (16, 16)
    rows = [zlib.decompress(chunks[b"IDAT"])[i * 17 + 1 : (i + 1) * 17] for i in range(16)]
    assert set(rows[15]) == {round((1 / 8) ** 0.6 * 255)}
    assert list(rows[14]) == [0] * 3 + [255] + [0] * 12
    assert not any(rows[0])


def test_a_run_that_cannot_be_written_wants_another_place(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosformer.cli.report.os.access", lambda place, how: how != os.W_OK)
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 2
    assert "cannot be written: name another file with --out" in " ".join(done.output.replace("│", " ").split())
    monkeypatch.undo()
    assert CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "page.html")]).exit_code == 0


def test_a_classifier_is_told_by_its_accuracy(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", with_demo=False)
    accuracy = {"accuracy": 0.8125, "accuracy_low": 0.79, "accuracy_high": 0.83}
    kept = [line for line in read_run(run).lines if line["kind"] != "sample"]
    for line in kept:
        if line["kind"] == "eval":
            del line["bits_per_byte"]
            line.update(accuracy)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    summary = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(summary | {"task": "classify", "metrics": {"loss": 0.4, **accuracy}}))
    page = report_page(read_run(run))
    words = "".join(Checked(page).words)
    assert "held-out accuracy81.2%95% interval 79.0% to 83.0%" in words
    assert "What it writes" not in words
    assert len([x for x in Checked(page).images if "src" in x]) == 4  # maps of a text of ours


def test_a_translation_stands_apart_from_its_source(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", with_demo=False)
    recipe = (run / "recipe.toml").read_text()
    assert "</mark> → " not in samples(read_run(run))
    (run / "recipe.toml").write_text(recipe.replace('task = "lm"', 'task = "translate"'))
    assert "<mark>def </mark> → " in samples(read_run(run))


def test_a_task_with_tokens_of_its_own_has_maps(tmp_path: Path) -> None:
    """The plain text of other runs is none of ListOps: the command ended with the tokenizer's traceback."""
    train(tiny("lra-listops", tmp_path / "data"), tmp_path / "run", device="cpu")
    page = Checked(report_page(read_run(tmp_path / "run")))
    assert len([x for x in page.images if "src" in x]) == 2 * 2
    assert "[MAX" in "".join(page.words)
    done = CliRunner().invoke(
        app, ["inspect", str(tmp_path / "run"), "--attention-map", "a cat", "--out", str(tmp_path / "map.png")]
    )
    assert done.exit_code == 2
    assert "no tokens for 'a cat'" in " ".join(done.output.replace("│", " ").split())


def test_an_encoder_decoder_has_no_maps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", with_demo=False)
    config = CosformerConfig(
        vocab_size=259, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, horizon=64, is_encoder_decoder=True,
        decoder_start_token_id=2,
    )  # fmt: skip
    CosformerForConditionalGeneration(config).save_pretrained(run)
    assert "an encoder–decoder has two" in report_page(read_run(run))


def test_numbers_that_are_not_finite_are_told_and_not_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False, with_demo=False)
    found = read_run(run).lines
    found[-3]["loss"] = found[3]["grad_norm"] = float("nan")
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    page = report_page(read_run(run))
    assert Checked(page).images
    assert "NaN" not in page.partition("<script>")[0]
