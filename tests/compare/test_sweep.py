"""The sweep: what goes wrong is a cell and ends nothing else; what is measured is kept, and not measured twice."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import odd_attentions
import pytest
import torch

from cosformer.compare import measure
from cosformer.compare import sweep as sweep_module
from cosformer.compare.measure import Measurer
from cosformer.compare.process import Nursery
from cosformer.compare.results import Cell, Key, Result
from cosformer.compare.settings import LENGTHS, Sweep, defaults, known
from cosformer.compare.sweep import predicted_ms, sweep_folder, wanted

SMALL = Sweep(
    attentions=("softmax", *odd_attentions.KINDS), lengths=(32, 64, 128), modes=("causal", "bidirectional"), heads=1,
    width=8, tokens=64, visits=2, sample_s=0.002, limit_s=0.5, memory_gib=0.5, imports=("odd_attentions",),
)  # fmt: skip


@pytest.fixture(scope="module")
def nursery(_odd_attentions: None) -> Iterator[Nursery]:
    """One for all tests: most of a start is imports."""
    made = Nursery(SMALL.imports)
    yield made
    made.close()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("sweep")
    return out, sweep_folder(SMALL, out, nursery=nursery)


def states(result: Result, attention: str, mode: str = "causal", work: str = "forward") -> list[tuple[str, str]]:
    return [(cell.state, cell.why) for cell in result.of(attention, mode, work)]


@pytest.mark.parametrize(
    ("attention", "state", "why"),
    [
        ("hungry", "out of memory", ""),
        ("exhausted", "out of memory", ""),
        ("dying", "killed", "the process was ended by SIGKILL, most often because memory ran out"),
        ("crawling", "slow", r"a call took \d\.\d s, and the limit is 0.5 s"),
    ],
)
@pytest.mark.parametrize("work", ["forward", "training"])
def test_what_ends_a_length_is_a_cell_and_longer_ones_say_so(
    swept: tuple[Path, Result], attention: str, state: str, why: str, work: str
) -> None:
    first, at, after = states(swept[1], attention, work=work)
    assert first == ("done", "")
    assert at[0] == state
    assert re.fullmatch(why, at[1])
    assert after == ("not tried", f"{state} at 64")


def test_a_fault_and_a_wrong_result_are_cells_of_their_own(swept: tuple[Path, Result]) -> None:
    assert states(swept[1], "faulty")[1:] == [("failed", "RuntimeError: boom")] * 2
    found = states(swept[1], "wrong")[1:]
    assert found == [("wrong", "its output or a gradient is not finite: what is wrong is not timed")] * 2


def test_a_mode_that_an_attention_does_not_have_is_refused_with_its_own_words(swept: tuple[Path, Result]) -> None:
    why = "looking_back cannot look ahead: use it in a decoder"
    assert states(swept[1], "looking_back", "bidirectional") == [("refused", why)] * 3
    assert states(swept[1], "looking_back") == [("done", "")] * 3


def test_a_measured_cell_has_samples_of_every_visit(swept: tuple[Path, Result]) -> None:
    for cell in swept[1].of("softmax", "bidirectional", "training"):
        assert cell.visits == 2
        assert len(cell.samples) >= 2
        assert cell.batch == max(1, 64 // cell.length)
        assert cell.ms is not None
        assert cell.us_per_token == pytest.approx(cell.ms * 1e3 / (cell.batch * cell.length))
        low, high = cell.spread or (0, 0)
        assert 0 < low <= cell.ms <= high


def test_the_file_is_what_was_measured_with_its_origin(swept: tuple[Path, Result]) -> None:
    out, result = swept
    found = json.loads((out / "speed.json").read_text())
    assert {"device", "date", "commit", "versions", "command", "settings", "settings_sha256"} <= found.keys()
    assert len(found["cells"]) == len(SMALL.attentions) * 3 * 2 * 2
    assert Result.read(out).cells == result.cells
    assert [path.name for path in out.iterdir()] == ["speed.json"]


def test_a_rerun_measures_nothing_again(swept: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch) -> None:
    out, result = swept
    monkeypatch.setattr(sweep_module, "Nursery", None)  # would fail if a process were started
    assert sweep_folder(SMALL, out).cells == result.cells


def test_more_lengths_are_added_and_other_settings_refused(
    swept: tuple[Path, Result], nursery: Nursery, tmp_path: Path
) -> None:
    out, result = swept
    (tmp_path / "speed.json").write_text((out / "speed.json").read_text())
    more = replace(SMALL, attentions=("looking_back",), lengths=(16,), modes=("causal",))
    after = sweep_folder(more, tmp_path, nursery=nursery)
    assert after.cells[Key("looking_back", "causal", "forward", 16)].state == "done"
    assert {key: cell for key, cell in after.cells.items() if key.length > 16} == result.cells
    with pytest.raises(ValueError, match=r"measured otherwise \(heads 1, now 2\)"):
        sweep_folder(replace(SMALL, heads=2), tmp_path)
    found = json.loads((tmp_path / "speed.json").read_text())
    found["commit"] = "another"
    (tmp_path / "speed.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="commit 'another', now"):
        sweep_folder(SMALL, tmp_path)


def test_when_the_time_is_over_cells_wait_and_a_rerun_goes_on(nursery: Nursery, tmp_path: Path) -> None:
    short = replace(SMALL, attentions=("looking_back",), modes=("causal",), lengths=(32,))
    first = sweep_folder(replace(short, minutes=1e-9), tmp_path, nursery=nursery)
    assert states(first, "looking_back") == [("waiting", "the 1e-09 minutes of the sweep were over")]
    second = sweep_folder(short, tmp_path, nursery=nursery)
    assert states(second, "looking_back") == [("done", "")]
    third = sweep_folder(replace(short, visits=3), tmp_path, nursery=nursery)
    for key, cell in third.cells.items():
        assert (cell.state, cell.visits) == ("done", 3)
        assert cell.samples[: len(second.cells[key].samples)] == second.cells[key].samples


LONGER = replace(SMALL, attentions=("looking_back",), modes=("causal",), lengths=(32, 64), sample_s=0.05, visits=4)


def test_killed_at_any_moment_it_loses_one_visit_at_most(nursery: Nursery, tmp_path: Path) -> None:
    """SIGKILL to the sweep itself: what it started ends too, what was in the file stays, a rerun does the rest."""
    program = "import sys, pathlib, test_sweep as t; t.sweep_folder(t.LONGER, pathlib.Path(sys.argv[1]))"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    where = os.environ | {"TMPDIR": str(scratch)}
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=where)
    until, kept = time.monotonic() + 90, Result(environment={}, settings={})
    while sum(cell.visits for cell in kept.cells.values()) < 3:
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < until
        time.sleep(0.005)
        if (tmp_path / "speed.json").is_file():
            kept = Result.read(tmp_path)
    started = descendants(process.pid)
    assert len(started) == 2  # the nursery and the one that measures
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < until, "a process outlived the sweep"
        time.sleep(0.05)
    assert not list(scratch.glob("cosformer-*"))
    left = Result.read(tmp_path)
    assert sum(cell.visits for cell in left.cells.values()) < 16
    after = sweep_folder(LONGER, tmp_path, nursery=nursery)
    assert {cell.state for cell in after.cells.values()} == {"done"}
    for earlier, later in ((kept, left), (left, after)):
        for key, cell in earlier.cells.items():
            assert later.cells[key].samples[: len(cell.samples)] == cell.samples


def descendants(pid: int) -> list[int]:
    told = subprocess.run(["ps", "-eo", "ppid=,pid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in told.splitlines():
        parent, child = (int(x) for x in line.split())
        children.setdefault(parent, []).append(child)
    found, queue = [], [pid]
    while queue:
        new = children.get(queue.pop(), [])
        found += new
        queue += new
    return found


def test_processes_end_with_the_sweep(swept: tuple[Path, Result], nursery: Nursery) -> None:
    del swept
    assert not descendants(nursery._process.pid)


def test_a_nursery_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="ended with status 1: ValueError: no module named 'no_such_module'"):
        Nursery(("no_such_module",))
    assert not list(tmp_path.iterdir())


def test_unknown_names_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="attention nobody is unknown: use some of cosformer,softmax,"):
        sweep_folder(replace(SMALL, attentions=("nobody",)), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lengths": ()}, "lengths=.*at least one"),
        ({"lengths": (64, 64)}, "each once"),
        ({"lengths": (0,)}, "at least 1"),
        ({"modes": ("sideways",)}, "mode sideways is unknown"),
        ({"heads": 0}, "heads=0"),
        ({"limit_s": 0.0}, "limit_s=0.0"),
        ({"dtype": torch.int8}, "floating point"),
        ({"device": "mps"}, "cpu and cuda only"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **wrong)


def test_settings_come_back_from_json() -> None:
    assert Sweep.from_json(json.loads(json.dumps(SMALL.to_json()))) == SMALL
    assert "lengths" not in SMALL.meaning()


def test_cells_that_are_compared_are_neighbours_in_time() -> None:
    keys = list(wanted(SMALL))
    assert len(keys) == len(set(keys)) == 8 * 3 * 2 * 2
    assert [key.attention for key in keys[:8]] == list(SMALL.attentions)
    assert [key.length for key in keys] == sorted(key.length for key in keys)


def test_defaults_fill_the_device() -> None:
    cpu, cuda = defaults("cpu"), defaults("cuda:0")
    assert cpu.lengths == cuda.lengths == LENGTHS == (512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072)
    assert (cpu.dtype, cuda.dtype) == (torch.float32, torch.bfloat16)
    assert cuda.batch(512) == 256
    assert cuda.batch(131_072) == 1
    assert cpu.attentions[:2] == ("cosformer", "softmax")
    assert "softmax_cudnn" in cuda.attentions
    assert "softmax_cudnn" not in cpu.attentions
    assert {"linear", "performer", "reformer", "bigbird"} <= set(known())


def made(length: int, ms: float, batch: int = 1) -> Cell:
    return Cell("x", "causal", "forward", length, batch, samples=[ms])


def test_a_longer_call_is_predicted_from_the_growth_so_far() -> None:
    target = Cell("x", "causal", "forward", 4_096, 1)
    assert predicted_ms([], target) is None
    assert predicted_ms([made(1_024, 10.0)], target) == pytest.approx(40.0)  # linear until more is known
    assert predicted_ms([made(1_024, 10.0), made(2_048, 40.0)], target) == pytest.approx(160.0)
    assert predicted_ms([made(1_024, 10.0), made(2_048, 5.0)], target) == pytest.approx(10.0)  # never less per token
    assert predicted_ms([made(1_024, 1.0), made(2_048, 40.0)], target) == pytest.approx(160.0)  # nor more than softmax


def test_a_length_that_would_take_too_long_is_not_begun(nursery: Nursery, tmp_path: Path) -> None:
    one = replace(SMALL, attentions=("looking_back",), modes=("causal",), lengths=(32, 64, 1 << 24))
    result = sweep_folder(one, tmp_path, nursery=nursery)
    cell = result.cells[Key("looking_back", "causal", "forward", 1 << 24)]
    assert cell.state == "slow"
    assert cell.why.endswith("s a call expected, and the limit is 0.5 s")


@pytest.mark.parametrize(("on_cuda", "state"), [(True, "measured"), (False, "slow")])
def test_on_a_gpu_a_long_first_call_may_have_built_kernels(
    on_cuda: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Measurer(SMALL, "softmax")
    one.on_cuda = on_cuda
    one.clock = SimpleNamespace(time=lambda *_, **__: SimpleNamespace(ms=[1.0]))  # type: ignore[assignment]
    monkeypatch.setattr(one, "_look", lambda *_: 60_000.0)  # ms, of a limit of half a second
    monkeypatch.setattr(measure, "once", lambda *_: 1.0)
    assert one._visit("causal", "forward", 32, True, None)["state"] == state


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"), (MemoryError(), "out of memory"),
        (RuntimeError("causal, bf16: error 3 is above the bound 1"), "wrong"),
    ],
)  # fmt: skip
def test_no_memory_for_the_check_is_no_wrong_result(
    error: Exception, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gate(**_: object) -> None:
        raise error

    monkeypatch.setattr(measure, "gate_attention", gate)
    monkeypatch.setattr(measure.host_memory, "limit", lambda _: None)
    question = {"mode": "causal", "work": "forward", "length": 32, "first": True, "about_ms": None}
    assert Measurer(SMALL, "cosformer").answer(question)["state"] == state


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_attention_is_measured_on_a_gpu(tmp_path: Path) -> None:
    sweep = replace(defaults("cuda:0"), lengths=(512, 1_024), tokens=2_048, heads=2, visits=1, memory_gib=8.0)
    sweep = replace(sweep, attentions=tuple(x for x in sweep.attentions if x not in odd_attentions.KINDS))
    result = sweep_folder(sweep, tmp_path)
    assert {cell.state for cell in result.cells.values()} == {"done", "refused"}
    for cell in result.cells.values():
        if cell.state == "done":
            assert cell.memory_bytes is not None
            assert cell.memory_bytes > 0
    assert len({cell.attention for cell in result.cells.values() if cell.state == "done"}) == len(sweep.attentions)
