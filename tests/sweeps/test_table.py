"""Means, intervals and states of a queue's table."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_outcomes import done, finish
from training_data import tiny

from cosformer.compare import quality
from cosformer.sweeps import attention_variants, collect, jobs_of, markdown_table, rows_of
from cosformer.sweeps.jobs import Job, run_folder
from cosformer.sweeps.outcomes import METRICS
from cosformer.sweeps.table import TABLE, interval, merged, places, read_table, shown


def cell(seed: int, value: float | None, **more: Any) -> dict[str, Any]:
    own = {"value": value, "steps_per_second": 2.0 + seed, **more}
    return {"group": "listops", "variant": "cosformer", "seed": seed, **done(**own)}


def test_one_seed_has_the_interval_of_its_examples() -> None:
    (row,) = rows_of([cell(0, 0.4)])
    assert (row["value"], row["low"], row["high"], row["seeds"]) == (0.4, 0.3, 0.5, 1)
    assert shown(row) == "40.0% (30.0–50.0)"


def test_several_seeds_have_that_of_their_mean() -> None:
    (row,) = rows_of([cell(0, 0.38), cell(1, 0.40), cell(2, 0.42)])
    assert row["value"] == pytest.approx(0.40)
    # s = 0.02, t(2) = 4.303: 4.303 · 0.02 / √3
    assert row["high"] - row["value"] == pytest.approx(0.0496873, abs=1e-6)
    assert row["steps_per_second"] == 3.0


def test_a_seed_that_failed_is_told_beside_the_others() -> None:
    failed = {"group": "listops", "variant": "cosformer", "seed": 1, "state": "failed", "why": "out of memory"}
    (row,) = rows_of([cell(0, 0.4), failed])
    assert (row["seeds"], row["state"], row["why"], row["value"]) == (1, "failed", "out of memory", 0.4)
    assert shown(row) == "40.0% (30.0–50.0); of 2 seeds 1 done, one failed: out of memory"
    (row,) = rows_of([failed])
    assert shown(row) == "failed: out of memory"


def test_an_interval_stays_within_what_an_accuracy_can_be() -> None:
    (row,) = rows_of([cell(0, 0.0), cell(1, 0.125)])
    assert (row["low"], row["value"], row["high"]) == (0.0, 0.0625, pytest.approx(0.0625 + 12.706 * 0.0625))
    (row,) = rows_of([cell(0, 0.02), cell(1, 0.5)])
    assert (row["low"], row["high"]) == (0.0, 1.0)
    (row,) = rows_of([cell(0, 2.0, metric="bits_per_byte"), cell(1, 3.0, metric="bits_per_byte")])
    assert row["low"] < 0  # only shares have ends


def test_seeds_by_another_measure_are_not_averaged() -> None:
    """Of words unknown, outcomes of an earlier version tell bits per byte, later ones perplexity."""
    (row,) = rows_of([cell(0, 0.7, metric="bits_per_byte"), cell(1, 9.0, metric="perplexity", low=None, high=None)])
    assert (row["metric"], row["value"], row["seeds"], row["planned"]) == ("perplexity", 9.0, 1, 2)


def test_numbers_that_are_no_shares() -> None:
    for value, wanted in ((1.23456, "1.235"), (16.934, "16.93"), (8232.4, "8,232")):
        (row,) = rows_of([cell(0, value, metric="perplexity", low=None, high=None)])
        assert shown(row) == wanted


def test_a_result_without_its_number_does_not_stop_the_table() -> None:
    """Translation that others start from is not tested, and only a test has BLEU."""
    (row,) = rows_of([cell(0, None, metric="bleu")])
    assert shown(row) == "done"


@pytest.mark.parametrize("missing", ["settings", "cells", "name"])
def test_a_table_cut_by_hand_is_refused(missing: str, tmp_path: Path) -> None:
    settings = {"groups": ["listops"], "variants": ["cosformer"], "seeds": [0], "parallel": 1}
    table = {"kind": "queue", "name": "test", "settings": settings, "cells": [cell(0, 0.4)], "table": []}
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    assert read_table(path)["table"] == rows_of([cell(0, 0.4)])
    path.write_text(json.dumps({name: value for name, value in table.items() if name != missing}))
    with pytest.raises(ValueError, match=rf"table\.json is damaged or of another version \(KeyError: '{missing}'\)"):
        read_table(path)
    path.write_text(json.dumps({**table, "cells": [{"group": "listops"}]}))
    with pytest.raises(ValueError, match="given again, writes it anew"):
        read_table(path)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """Of 4,000 means of three draws, 95% lie within (σ of that share: 0.34%)."""
    import random

    chance = random.Random(0)
    inside = sum(
        low <= 0 <= high for low, high in (interval([chance.gauss(0, 1) for _ in range(3)]) for _ in range(4000))
    )
    assert abs(inside / 4000 - 0.95) < 4 * 0.0034


def test_markdown_has_groups_across() -> None:
    cells = [cell(0, 0.4), {**cell(0, 0.2), "variant": "linear"}]
    settings: dict[str, Any] = {"groups": ["listops"], "variants": ["cosformer", "linear"], "parallel": 1}
    table = {"settings": settings, "table": rows_of(cells)}
    lines = [
        "| | listops (test accuracy) |",
        "|---|---:|",
        "| cosformer | 40.0% (30.0–50.0); 2.0 steps/s, 1 MiB |",
        "| linear | 20.0% (30.0–50.0); 2.0 steps/s, 1 MiB |",
    ]
    assert markdown_table(table).splitlines() == lines
    settings["parallel"] = 6
    assert markdown_table(table).splitlines() == [*lines, "", "Steps/s with up to 5 other runs beside."]


def queue_of(*cells: dict[str, Any], parallel: int = 1) -> dict[str, Any]:
    names = {f"{name}s": list(dict.fromkeys(cell[name] for cell in cells)) for name in ("group", "variant", "seed")}
    return {
        "kind": "queue", "name": "test", "settings": {"parallel": parallel, **names}, "cells": list(cells), "table": []
    }  # fmt: skip


def test_queues_of_a_task_each_are_one_table() -> None:
    text = {**cell(0, 0.6, device="B"), "group": "text"}
    late = {**text, "variant": "linear", "state": "interrupted", "why": ""}
    first, second = queue_of(cell(0, 0.4, device="A"), late), queue_of(text, {**late, **done(value=0.5)}, parallel=3)
    found = merged([first, second])
    assert found["settings"] == {
        "parallel": 3, "groups": ["listops", "text"], "variants": ["cosformer", "linear"], "seeds": [0],
    }  # fmt: skip
    assert [(row["group"], row["variant"], row.get("value")) for row in found["table"]] == [
        ("listops", "cosformer", 0.4), ("text", "linear", 0.5), ("text", "cosformer", 0.6),
    ]  # fmt: skip
    assert [row["state"] for row in found["table"]] == ["done"] * 3  # the one done counts, whichever comes first
    assert merged([second, first])["settings"]["groups"] == ["text", "listops"]
    assert places(found) == "listops on A; text on B"
    assert markdown_table(found).splitlines()[-1] == "Listops on A; text on B."
    assert not places(first)


def test_a_run_with_two_results_is_not_chosen_in_silence() -> None:
    with pytest.raises(ValueError, match="two tables have listops cosformer of seed 0: name one of them"):
        merged([queue_of(cell(0, 0.4)), queue_of(cell(0, 0.5))])
    assert merged([queue_of(cell(0, 0.4)), queue_of(cell(0, 0.4))])["table"][0]["value"] == 0.4  # the same file twice


def test_the_page_that_compares_knows_the_same_table() -> None:
    """It imports nothing that trains, so it has these names once more."""
    assert quality.TABLE == TABLE
    assert dict(METRICS.values()).items() <= quality.METRICS.items()


def planned(tmp_path: Path, attentions: str, *seeds: int) -> list[Job]:
    return jobs_of({"listops": tiny("lra-listops", tmp_path / "data")}, attention_variants(attentions.split()), seeds)


def test_a_later_command_adds_to_the_table_of_its_folder(tmp_path: Path) -> None:
    """A task, an attention or a seed at a time: what other commands did stays, in its place."""
    folder, many = tmp_path / "q", planned(tmp_path, "cosformer linear", 0, 1)
    folder.mkdir()
    for job in many[:3]:
        finish(folder, job, value=0.2)
    run_folder(folder, many[3].name).mkdir(parents=True)
    (run_folder(folder, many[3].name) / "recipe.toml").touch()
    collect(folder, [*many, *planned(tmp_path, "rfa", 0)], name="q", parallel=3)
    found = collect(folder, planned(tmp_path, "softmax cosformer", 1), name="q")
    states = {cell["run"]: cell["state"] for cell in found["cells"]}
    assert list(states.items()) == [
        ("listops-cosformer-0", "done"), ("listops-linear-0", "done"), ("listops-cosformer-1", "done"),
        ("listops-linear-1", "interrupted"), ("listops-softmax-1", "waiting"),
    ]  # fmt: skip
    assert found["settings"]["variants"] == ["cosformer", "linear", "softmax"]
    assert found["settings"]["seeds"] == [0, 1]
    assert found["table"][0]["seeds"] == 2
    assert read_table(folder)["table"] == found["table"]


def test_a_damaged_table_is_written_anew(tmp_path: Path) -> None:
    jobs = planned(tmp_path, "cosformer", 0)
    for text in ("", "[]", '{"cells": [{"group": "a"}]}'):
        (tmp_path / TABLE).write_text(text)
        assert [cell["run"] for cell in collect(tmp_path, jobs, name="q")["cells"]] == [jobs[0].name]
