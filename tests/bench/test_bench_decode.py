"""One decoding step, timed: rounds, cells, the capture of a graph."""

import contextlib
import types

import pytest
import torch

from cosformer.bench import decode
from cosformer.bench.clock import HostClock, Samples
from cosformer.bench.decode import BEYOND_CACHES, DecodeBench, copies

SMALL = DecodeBench(sequences=2, heads=2, width=8, positions=(10, 1_000), contexts=(16,), repeats=2)


class Fixed(HostClock):
    """Runs once and reports 6 ms."""

    def time(self, run, *, repeats: int, budget_s: float = 0.5) -> Samples:
        run()
        return Samples(ms=[6.0] * repeats, call_us=[6_000.0] * repeats)


def test_a_round_is_larger_than_caches() -> None:
    full = DecodeBench()
    assert full.state_bytes == 16 * 16 * 2 * 64 * 65 * 4
    assert copies(full.state_bytes) * full.state_bytes >= BEYOND_CACHES
    assert copies(1 << 40) == 1
    assert copies(1) == decode.MOST
    assert full.floor_bytes == 2 * full.state_bytes + 4 * 16 * 16 * 64 * 4


def test_times_are_those_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "copies", lambda one: 3)
    said: list[str] = []
    ours, softmax = decode.measure(SMALL, Fixed(), said=said.append)
    assert list(ours) == ["10", "1000"]
    assert list(softmax) == ["16"]
    assert len(said) == 3
    for cells in (*ours.values(), *softmax.values()):
        assert set(cells) == {"eager", "hot"}
        for cell in cells.values():
            assert cell["us"] == cell["call_us"] == pytest.approx(2_000)
            assert cell["us_by_run"] == pytest.approx([2_000, 2_000])
            assert cell["steps_in_a_round"] == 3


def test_every_step_is_at_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    right = decode.attention_step

    def watched(q, k, v, state, **options):
        seen.append((state.length, id(state)))
        return right(q, k, v, state, **options)

    monkeypatch.setattr(decode, "copies", lambda one: 3)
    monkeypatch.setattr(decode, "attention_step", watched)
    decode.measure(SMALL, Fixed())
    assert {position for position, _ in seen} == {10, 1_000}
    assert len({state for position, state in seen[:3]}) == 3  # in turn
    assert len({state for position, state in seen[6:9]}) == 1  # hot


def test_a_cache_that_does_not_fit_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausts(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(decode, "copies", lambda one: 1)
    monkeypatch.setattr(decode, "_softmax", exhausts)
    assert decode.measure(SMALL, Fixed())[1] == {"16": {"eager": {"reason": "out of memory"}}}


def test_what_cannot_be_captured_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(run: object) -> None:
        raise torch.AcceleratorError("operation not permitted when stream is capturing\nCompile with ...")

    monkeypatch.setattr(decode, "copies", lambda one: 1)
    monkeypatch.setattr(decode, "captured", refuses)
    cells = decode._cells([lambda: None], SMALL, Fixed(), captures=True, ours=True)
    assert cells["eager"]["us"] == 6_000
    for way in ("graph", "graph_hot"):
        assert cells[way] == {"reason": "AcceleratorError: operation not permitted when stream is capturing"}


def test_a_graph_holds_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured is replayed, after rounds on another stream to warm up."""
    order: list[str] = []
    stream = types.SimpleNamespace(wait_stream=lambda other: order.append("wait"))

    class Graph:
        def replay(self) -> None:
            order.append("replay")

    @contextlib.contextmanager
    def capture(graph: Graph):
        order.append("capture")
        yield
        order.append("captured")

    for name, value in {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: contextlib.nullcontext(),
        "CUDAGraph": Graph,
        "graph": capture,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    decode.captured(lambda: order.append("round"))()
    assert order == ["wait", "round", "round", "wait", "capture", "round", "captured", "replay"]


@pytest.mark.parametrize("wrong", [{"sequences": 0}, {"contexts": (0,)}, {"positions": (-1,)}], ids=str)
def test_nothing_to_measure_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        DecodeBench(**wrong)
