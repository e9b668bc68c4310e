"""Quality is read from queues, result files of runs and run folders, each as what it is; nothing else is."""

import hashlib
import json
from pathlib import Path

import pytest
from made_comparison import made_queue, made_runs

from cosformer.compare.quality import committed, read_quality
from cosformer.compare.tables import quality_table


def written(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_queue_is_its_own_table(tmp_path: Path) -> None:
    path = written(tmp_path / "table.json", made_queue())
    for named in (path, tmp_path):
        found = read_quality([named])
        assert found.groups() == ["listops", "image", "retrieval"]
        first, last = found.rows[0], found.rows[-1]
        assert (first.variant, first.value, first.seeds, first.split) == ("cosformer", 0.36, 3, "test")
        assert (first.steps_per_second, first.tokens_per_second) == (3.0, 1_000.0)
        assert (last.group, last.state, last.why) == ("retrieval", "skipped", "the files of AAN are not there")
        assert last.value is None
        assert found.inputs == [(f"{tmp_path.name}/table.json", hashlib.sha256(path.read_bytes()).hexdigest())]


def test_matched_runs_that_differ_in_seed_are_one_row(tmp_path: Path) -> None:
    ours, softmax = read_quality([written(tmp_path / "runs.json", made_runs())]).rows
    assert (ours.group, ours.variant, ours.metric, ours.better) == ("lm-text", "cosformer", "bits_per_byte", "lower")
    assert ours.split == "test"
    assert ours.value == pytest.approx(2.1)
    assert ours.seeds == 2
    assert ours.low == pytest.approx(2.1 - 12.706 * 0.1)  # t of one degree, times s/√2 = 0.1
    assert (softmax.variant, softmax.value, softmax.seeds, softmax.steps_per_second) == ("softmax", 1.9, 1, 2.0)


def test_rows_by_another_measure_are_not_ranked_with_the_rest(tmp_path: Path) -> None:
    """A run whose words are unknown has no bits per byte, and its perplexity is larger than any."""
    runs = made_runs()
    del runs["runs"]["c"]["evaluations"]["test"]["metrics"]["bits_per_byte"]
    runs["runs"]["c"]["evaluations"]["test"]["metrics"]["perplexity"] = 90.0
    found = read_quality([written(tmp_path / "runs.json", runs)])
    assert [(row.group, row.metric) for row in found.rows] == [
        ("lm-text", "bits_per_byte"), ("lm-text, perplexity", "perplexity"),
    ]  # fmt: skip


def test_a_start_that_follows_from_the_attention_is_not_told(tmp_path: Path) -> None:
    runs = made_runs()
    runs["differ_in"] = ["model.attention", "model.init", "seed"]
    for run in runs["runs"].values():
        run["model.init"] = f"masked-{run['model.attention']}"
    ours, softmax = read_quality([written(tmp_path / "runs.json", runs)]).rows
    assert (ours.variant, softmax.variant) == ("cosformer", "softmax")
    runs["runs"]["a"]["model.init"] = "another"
    told = {row.variant for row in read_quality([written(tmp_path / "runs.json", runs)]).rows}
    assert told == {"cosformer, init another", "cosformer, init masked-cosformer", "softmax, init masked-softmax"}


def test_a_shared_machine_is_told_beside_its_speed(tmp_path: Path) -> None:
    runs, queue = made_runs(), made_queue()
    runs["runs"]["b"]["parallel"] = 8
    for cell in queue["cells"]:
        cell["parallel"] = 6
    ours, softmax = read_quality([written(tmp_path / "runs.json", runs)]).rows
    assert (ours.parallel, softmax.parallel) == (8, 1)
    notes = [row[-1].text for row in quality_table(read_quality([tmp_path / "runs.json"]), "lm-text").rows]
    assert notes == ["–", "one of 8 runs at once: its speed is that of a shared machine"]  # softmax is better, so first
    assert read_quality([written(tmp_path / "table.json", queue)]).rows[0].parallel == 6


def made_run(folder: Path, attention: str, seed: int, accuracy: float | None) -> None:
    folder.mkdir(parents=True)
    written(folder / "recipe.toml", f'name = "classify"\nseed = {seed}\n[model]\nattention = "{attention}"\n')
    written(folder / "metrics.jsonl", "")
    if accuracy is not None:
        metrics = {"loss": 1.0, "accuracy": accuracy, "accuracy_low": accuracy - 0.1, "accuracy_high": accuracy + 0.1}
        summary = {"steps": 10, "seconds": 5.0, "tokens_per_second": 7.0, "memory_bytes": 9, "metrics": metrics}
        written(folder / "run.json", summary)


def test_folders_of_runs(tmp_path: Path) -> None:
    made_run(tmp_path / "a", "cosformer", 0, 0.5)
    made_run(tmp_path / "b", "cosformer", 1, 0.7)
    made_run(tmp_path / "c", "softmax", 0, 0.6)
    made_run(tmp_path / "d", "linear", 0, None)
    found = {row.variant: row for row in read_quality([tmp_path]).rows}
    assert found["cosformer"].value == pytest.approx(0.6)
    assert found["cosformer"].seeds == 2
    assert (found["softmax"].low, found["softmax"].high) == (pytest.approx(0.5), pytest.approx(0.7))
    assert (found["linear"].state, found["linear"].why) == ("waiting", "d is not finished")
    alone = read_quality([tmp_path / "c"])
    assert [row.variant for row in alone.rows] == ["softmax"]
    assert [name for name, _ in alone.inputs] == ["c/run.json"]


def test_an_evaluation_on_test_counts_more_than_the_run_itself(tmp_path: Path) -> None:
    made_run(tmp_path / "a", "cosformer", 0, 0.5)
    written(tmp_path / "a" / "eval-test.json", {"metrics": {"accuracy": 0.55}})
    row = read_quality([tmp_path / "a"]).rows[0]
    assert (row.value, row.split, row.low) == (0.55, "test", None)


def test_what_tells_no_quality_is_refused_by_name_and_passed_over_in_a_folder(tmp_path: Path) -> None:
    other = written(tmp_path / "other.json", {"benchmark": "attention"})
    with pytest.raises(ValueError, match=r"other\.json tells no quality"):
        read_quality([other])
    with pytest.raises(ValueError, match=r"holds no table\.json, no run"):
        read_quality([tmp_path])
    with pytest.raises(FileNotFoundError, match="is not there"):
        read_quality([tmp_path / "nothing"])
    assert committed(tmp_path).rows == []
    written(tmp_path / "runs.json", made_runs())
    assert len(committed(tmp_path).rows) == 2


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"half\.json is not readable"):
        read_quality([written(tmp_path / "half.json", '{"kind": "que')])
    with pytest.raises(ValueError, match=r"odd\.json is damaged or of another version"):
        read_quality([written(tmp_path / "odd.json", {"kind": "queue"})])
