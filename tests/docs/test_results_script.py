"""results/make.sh asks for what there is: every command parses, its recipes load, its files go where the pages look."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cosformer.cli.main import app
from cosformer.training import load_recipe

SCRIPT = Path(__file__).resolve().parents[2] / "results" / "make.sh"
STAGES = re.findall(r"^(\w+)\)$", SCRIPT.read_text(), re.MULTILINE)
RECORDER = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done >> "$RECORD"
echo "--end--" >> "$RECORD"
printf '%s' "$PYTHONPATH" > "$RECORD.path"
"""


def commands(stage: str, folder: Path) -> list[list[str]]:
    """What a stage would call, in a folder without anything but what it copies."""
    (folder / "results").mkdir()
    (folder / "runs" / "compare").mkdir(parents=True)
    (folder / "runs" / "compare" / "speed.json").write_text("{}")
    python = folder / "python"
    python.write_text(RECORDER)
    python.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"], "PYTHON": str(python), "RECORD": str(folder / "record"), "TAG": "cuda_x",
        "JOBS": "1",  # or two would write their words at once
    }  # fmt: skip
    subprocess.run(["bash", str(SCRIPT), stage, "data"], cwd=folder, env=environment, check=True, capture_output=True)
    assert (folder / "record.path").read_text() == str(folder)  # nothing is installed on a rented machine
    calls = (folder / "record").read_text().split("--end--\n")[:-1]
    return [call.splitlines() for call in calls]


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The verb and its options, as the command reads them."""
    command: Any = get_command(app)
    names: list[str] = []
    while hasattr(command, "resolve_command"):  # a group; typer brings a click of its own
        context = command.make_context("cosformer", words, resilient_parsing=True)
        name, command, words = command.resolve_command(context, words)
        names.append(name)
    return " ".join(names), command.make_context(names[-1], words).params


@pytest.mark.parametrize("stage", STAGES)
def test_every_command_of_a_stage_is_one(stage: str, tmp_path: Path) -> None:
    called = commands(stage, tmp_path)
    assert called
    for words in called:
        if words[0] == "docs/run_results.py":
            assert words[1].startswith("results/")
            continue
        if words[0] == "results/profile_steps.py":
            load_recipe(words[2], *words[3:])
            continue
        assert words[:2] == ["-m", "cosformer.cli.main"]
        verb, options = parsed(words[2:])
        recipes = options.get("recipes", [f"lra-{task}" for task in (options.get("tasks") or "").split(",") if task])
        for name in [*recipes, *filter(None, [options.get("recipe"), options.get("before")])]:
            load_recipe(name, *(options.get("set_") or []))
        assert options["device"] == "cuda", verb


def test_rates_are_told_without_a_look_at_test(tmp_path: Path) -> None:
    called = commands("rates", tmp_path)
    assert [words[words.index("--out") + 1] for words in called] == [
        f"runs/rates/{task}-{rate}" for task in ("image", "pathfinder") for rate in ("2e-4", "5e-4", "1e-3")
    ]
    assert {parsed(words[2:])[0] for words in called} == {"train"}  # queues test what they have trained


def test_a_rate_that_fails_lets_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.RECORDER", RECORDER + 'case "$*" in *rate=5e-4*) exit 3 ;; esac\n')
    with pytest.raises(subprocess.CalledProcessError):
        commands("rates", tmp_path)
    assert (tmp_path / "record").read_text().count("--end--") == 6


def test_there_are_stages_and_others_are_refused(tmp_path: Path) -> None:
    assert len(STAGES) == 15
    done = subprocess.run(["bash", str(SCRIPT), "nothing"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert all(stage in done.stderr for stage in STAGES)


def test_what_is_committed_has_a_stage(tmp_path: Path) -> None:
    """Of the files of a GPU; a name is a kind, a device and a month."""
    made = set()
    for i, stage in enumerate(STAGES):
        folder = tmp_path / str(i)
        folder.mkdir()
        text = json.dumps(commands(stage, folder)) + " ".join(os.listdir(folder / "results"))
        made |= set(re.findall(r"([a-z0-9-]+)-cuda_x\.json", text))
    there = {path.name.split("-cuda_")[0] for path in SCRIPT.parent.glob("*-cuda_*.json")}
    assert there
    assert there <= made
