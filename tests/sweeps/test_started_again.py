"""What a queue makes of the folder it is started in again: nothing here trains."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_outcomes import finish
from training_data import tiny

from cosformer.sweeps import Job, QueueSettings, Variant, attention_variants, jobs_of, run_queue
from cosformer.sweeps import queue as module
from cosformer.sweeps.child import _beside
from cosformer.sweeps.jobs import job_file, run_folder
from cosformer.sweeps.outcomes import outcome_file, read_outcome, write_outcome
from cosformer.sweeps.table import read_table
from cosformer.training import BadRecipe
from cosformer.training.recipe import read_recipe_file
from cosformer.training.run_folder import check_same
from cosformer.training.sources import placed

SETTINGS = QueueSettings(name="test", device="cpu")


def planned(tmp_path: Path, *more: str, pretrain: bool = False) -> list[Job]:
    recipe = tiny("lra-listops", tmp_path / "data", "pretrain.steps=2", *more)
    return jobs_of({"listops": recipe}, attention_variants(["cosformer"]), [0], pretrain=pretrain)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs that would be started; each is done at once."""
    found: list[str] = []

    class Process:
        def __init__(self, arguments: list[str], **_: Any) -> None:
            place = arguments.index("cosformer.sweeps.child") + 1
            folder, job = Path(arguments[place]), arguments[place + 1]
            found.append(job)
            write_outcome(folder, job, {"state": "skipped", "why": "of a test"})

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=Process, DEVNULL=None))
    return found


def test_what_shared_the_machine_is_still_said_when_all_is_done(tmp_path: Path, started: list[str]) -> None:
    jobs = planned(tmp_path)
    finish(tmp_path, jobs[0], parallel=6)
    assert run_queue(tmp_path, jobs, SETTINGS)
    assert started == []
    assert read_table(tmp_path)["settings"]["parallel"] == 6
    assert read_table(tmp_path)["cells"][0]["device"] == "a machine"


def test_speed_is_told_of_the_queue_that_trained(tmp_path: Path) -> None:
    """Not of one that came later, and only tested."""
    name, run = "listops-cosformer-0", run_folder(tmp_path, "listops-cosformer-0")
    run.mkdir(parents=True)
    job_file(tmp_path, name).parent.mkdir()
    assert _beside(tmp_path, name, 6) == 6
    assert _beside(tmp_path, name, 2) == 2  # resumed: its speed is that of the last process
    (run / "run.json").touch()
    assert _beside(tmp_path, name, 1) == 2


@pytest.mark.parametrize("state", ["skipped", "failed"])
def test_what_was_not_done_is_tried_again(state: str, tmp_path: Path, started: list[str]) -> None:
    jobs = planned(tmp_path)
    write_outcome(tmp_path, jobs[0].name, {"state": state, "why": "of another day"})
    assert run_queue(tmp_path, jobs, SETTINGS)
    assert started == [jobs[0].name]
    assert read_table(tmp_path)["cells"][0]["why"] == "of a test"


@pytest.mark.parametrize(
    "text", ["", '{"state": "do', "[]", "{}", '{"state": "done", "why": ""}', '{"state": "failed"}'],
    ids=["empty", "cut", "list", "stateless", "without numbers", "without reason"],
)  # fmt: skip
def test_a_damaged_outcome_is_named_with_the_way_out(text: str, tmp_path: Path, started: list[str]) -> None:
    jobs = planned(tmp_path)
    finish(tmp_path, jobs[0])
    outcome_file(tmp_path, jobs[0].name).write_text(text)
    with pytest.raises(ValueError, match=r"listops-cosformer-0\.json is damaged or of another version .*: remove it"):
        run_queue(tmp_path, jobs, SETTINGS)
    assert started == []


def test_another_recipe_is_refused(tmp_path: Path, started: list[str]) -> None:
    (one,) = planned(tmp_path)
    job_file(tmp_path, one.name).parent.mkdir(parents=True)
    job_file(tmp_path, one.name).write_text(one.recipe.toml())
    with pytest.raises(BadRecipe, match=r"listops-cosformer-0 by another recipe: train\.learning_rate=0\.5 \(there"):
        run_queue(tmp_path, planned(tmp_path, "train.learning_rate=0.5"), SETTINGS)
    assert started == []


@pytest.mark.parametrize("field", ["eval.keep=last", "train.micro_batch=2", "eval.every=1"])
def test_a_result_is_not_taken_for_that_of_other_settings(field: str, tmp_path: Path, started: list[str]) -> None:
    """Which weights are kept, how fast and in how much memory: a job under way may go on so, a result may not."""
    jobs = planned(tmp_path, field)
    (one,) = planned(tmp_path)
    job_file(tmp_path, one.name).parent.mkdir(parents=True)
    job_file(tmp_path, one.name).write_text(one.recipe.toml())
    assert run_queue(tmp_path, jobs, SETTINGS)
    assert started == [one.name]
    finish(tmp_path, one)
    with pytest.raises(BadRecipe, match=rf"by another recipe: {field.partition('=')[0]}="):
        run_queue(tmp_path, jobs, SETTINGS)


def test_a_recipe_stays_as_its_result_was_made(tmp_path: Path, started: list[str]) -> None:
    (one,) = planned(tmp_path)
    finish(tmp_path, one)
    assert run_queue(tmp_path, planned(tmp_path, 'data.path=["elsewhere"]'), SETTINGS)
    assert started == []
    assert read_recipe_file(job_file(tmp_path, one.name)).data.path == one.recipe.data.path


def test_a_model_that_is_gone_is_trained_again_if_it_is_needed(tmp_path: Path, started: list[str]) -> None:
    before, after = planned(tmp_path, pretrain=True)
    finish(tmp_path, before)
    finish(tmp_path, after)
    assert run_queue(tmp_path, [before, after], SETTINGS)
    assert started == []  # nobody needs it
    outcome_file(tmp_path, after.name).unlink()
    assert run_queue(tmp_path, [before, after], SETTINGS)
    assert started == [before.name]
    found = read_outcome(tmp_path, after.name)
    assert found is not None
    assert "which it starts from, skipped: of a test" in found["why"]


def test_a_run_under_way_moves_with_its_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the queue's folder or the model was named by a path that is not whole."""
    _, after = planned(tmp_path, pretrain=True)
    monkeypatch.chdir(tmp_path)
    for old in (tmp_path / "old", Path("queue"), Path("..") / tmp_path.name / "queue"):
        stored = placed(after.recipe_in(old))
        check_same(stored, placed(after.recipe_in(tmp_path / "new")))
        with pytest.raises(ValueError, match=r"another recipe: model\.init="):
            check_same(stored, after.recipe.with_values(["model.init=something-else"]))
    own = after.recipe.with_values(["model.init=runs/base"])
    check_same(placed(own), own)


def test_the_model_to_start_from_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, after = planned(tmp_path, pretrain=True)
    monkeypatch.chdir(tmp_path)
    assert after.recipe_in(Path("queue")) == after.recipe_in(tmp_path / "queue")


def test_jobs_of_one_name_are_refused(tmp_path: Path, started: list[str]) -> None:
    recipe = tiny("lra-listops", tmp_path / "data")
    with pytest.raises(BadRecipe, match=r"two jobs are called a-b-c-0 \(variant 'b-c' of 'a' and variant 'c' of 'a-b'"):
        jobs_of({"a": recipe, "a-b": recipe}, [Variant(name="b-c"), Variant(name="c")], [0])
    with pytest.raises(BadRecipe, match="two jobs are called a-c-0"):
        jobs_of({"a": recipe}, [Variant(name="c")], [0], before={"a": recipe})
    (one,) = planned(tmp_path)
    lonely = Job(group="a", variant="b", seed=0, recipe=recipe, after="nobody")
    with pytest.raises(BadRecipe, match="a-b-0 starts from nobody, which is not in the queue"):
        run_queue(tmp_path / "queue", [one, lonely], SETTINGS)
    assert started == []
