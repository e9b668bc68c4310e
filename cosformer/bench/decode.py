"""`bench decode`: one decoding step at early and late positions, against softmax over a cache of keys and values.

A model decodes layer after layer, so each layer's state or cache comes from memory, not from L2: the step is timed over
as many of them in turn as make up 256 MiB (at most 64), and once over a single one (`hot`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cosformer.bench.clock import Clock, Samples
from cosformer.bench.systems import attempt, in_words
from cosformer.ops.attention import attention_step
from cosformer.ops.cost import state_bytes
from cosformer.ops.features import sum_dtype
from cosformer.ops.state import AttentionState

BEYOND_CACHES, MOST = 256 << 20, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeBench:
    sequences: int = 16
    heads: int = 16
    width: int = 64
    positions: tuple[int, ...] = (10, 1_000, 1_000_000)
    contexts: tuple[int, ...] = (1_024, 8_192)
    """Tokens of the softmax caches."""
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    backend: str = "auto"
    repeats: int = 30

    def __post_init__(self) -> None:
        if min(self.sequences, self.heads, self.width, self.repeats) < 1:
            raise ValueError("sequences, heads, width and repeats: each at least 1")
        if any(x < 1 for x in (*self.positions, *self.contexts)):
            raise ValueError(f"positions {self.positions} and contexts {self.contexts}: each at least 1")

    @property
    def state_bytes(self) -> int:
        return state_bytes(self.sequences, self.heads, self.width, self.width, sum_dtype(self.dtype).itemsize)

    @property
    def floor_bytes(self) -> int:
        """The state read and written; q, k and v read, o written."""
        return 2 * self.state_bytes + 4 * self.sequences * self.heads * self.width * self.dtype.itemsize


CUDA = DecodeBench(contexts=(1_024, 8_192, 65_536), device="cuda:0", dtype=torch.bfloat16)


def measure(
    bench: DecodeBench, clock: Clock, *, said: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, dict], dict[str, dict]]:
    """Ours by position and softmax by context: for each way of calling (eager, graph, hot) a cell of µs per step."""
    captures = torch.device(bench.device).type == "cuda"
    with torch.no_grad():
        ours = {}
        for position in bench.positions:
            ours[str(position)] = _cells(_steps(bench, position), bench, clock, captures, ours=True)
            said(f"position {position:,}")
        softmax = {}
        for context in bench.contexts:
            try:
                softmax[str(context)] = _cells(_softmax(bench, context), bench, clock, captures, ours=False)
            except torch.OutOfMemoryError:  # already of the cache itself
                softmax[str(context)] = {"eager": {"reason": "out of memory"}}
            clock.clear()
            said(f"softmax over {context:,}")
    return ours, softmax


Calls = list[Callable[[], object]]


def _steps(bench: DecodeBench, position: int) -> Calls:
    """One call for each state."""
    shape, horizon = (bench.sequences, bench.heads, 1, bench.width), 2 * max(bench.positions)
    q, k, v = (torch.randn(shape, device=bench.device, dtype=bench.dtype) for _ in range(3))
    sizes = (bench.sequences, bench.heads, bench.width, bench.width)
    kind = {"horizon": horizon, "dtype": sum_dtype(bench.dtype), "device": bench.device}

    def on(state: AttentionState) -> Callable[[], object]:
        def step() -> object:
            state.length = position  # every round at the same one
            return attention_step(q, k, v, state, backend=bench.backend)

        return step

    return [on(AttentionState.zeros(*sizes, **kind)) for _ in range(copies(bench.state_bytes))]


def _softmax(bench: DecodeBench, context: int) -> Calls:
    """One call for each cache."""
    shape = (bench.sequences, bench.heads, context, bench.width)
    q = torch.randn(*shape[:2], 1, shape[3], device=bench.device, dtype=bench.dtype)

    def over() -> Callable[[], object]:
        k, v = (torch.randn(shape, device=bench.device, dtype=bench.dtype) for _ in range(2))
        return lambda: F.scaled_dot_product_attention(q, k, v)

    one = 2 * bench.sequences * bench.heads * context * bench.width * bench.dtype.itemsize
    return [over() for _ in range(copies(one))]


def copies(one: int) -> int:
    """How many things of so many bytes it takes until none is found in a cache; not more than a deep model has."""
    return min(MOST, -(-BEYOND_CACHES // one))


def _cells(calls: Calls, bench: DecodeBench, clock: Clock, captures: bool, *, ours: bool) -> dict[str, dict]:
    def in_turn() -> None:
        for call in calls:
            call()

    def one() -> None:
        for _ in calls:
            calls[0]()

    ways: dict[str, Callable[[], Callable[[], object]]] = {"eager": lambda: in_turn}
    if captures:
        ways |= {"graph": lambda: captured(in_turn), "graph_hot": lambda: captured(one)}
    else:
        ways["hot"] = lambda: one
    return {name: _cell(way, len(calls), bench, clock, ours=ours) for name, way in ways.items()}


def _cell(
    way: Callable[[], Callable[[], object]], count: int, bench: DecodeBench, clock: Clock, *, ours: bool
) -> dict[str, object]:
    try:
        run = way()
    except RuntimeError as error:  # what cannot be captured may still run step by step
        return {"reason": in_words(error)}
    runs: list[Samples] = []

    def twice() -> None:
        for _ in range(2):
            runs.append(clock.time(run, repeats=bench.repeats))

    reason = attempt(twice, ours=ours)
    if reason is not None:
        return {"reason": reason}
    seen = Samples.joined(runs)
    by = 1e3 / count
    return {
        "us": seen.median * by, "p20": seen.at(0.2) * by, "p80": seen.at(0.8) * by,
        "us_by_run": [run.median * by for run in runs], "steps_in_a_round": count,
        "call_us": seen.call / count, "cpu_ahead": seen.ahead,
    }  # fmt: skip


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """The same work as a CUDA graph: one launch for a whole round."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
