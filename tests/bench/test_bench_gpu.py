"""The CUDA benchmark without a GPU: its clock on a simulated one, its cells and formulas on the CPU."""

import json
import types
import warnings
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from cosformer import attention_reference
from cosformer.bench import clock, environment, gpu, report, systems
from cosformer.bench.attention import CUDA, AttentionBench
from cosformer.bench.floor import Rates, floor_bytes, linear_flops, result_bytes, softmax_flops
from cosformer.cli import bench_gpu

BENCH = AttentionBench(lengths=(24, 40), tokens=80, heads=2, width=8, repeats=2)


class Simulated:
    """A GPU that works through a queue while the CPU goes on; times in seconds."""

    def __init__(self) -> None:
        self.cpu = self.gpu = 0.0
        self.slept: list[int] = []

    def launch(self, launching: float, working: float) -> None:
        self.cpu += launching
        self.gpu = max(self.cpu, self.gpu) + working

    def wait(self, *_: object) -> None:
        self.cpu = max(self.cpu, self.gpu)

    def sleep(self, cycles: int) -> None:
        self.slept.append(cycles)
        self.launch(1e-6, cycles / 2e9)

    def event(simulated, enable_timing: bool):
        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = max(simulated.cpu, simulated.gpu)

            def query(self) -> bool:
                return self.at <= simulated.cpu

            def synchronize(self) -> None:
                simulated.cpu = max(simulated.cpu, self.at)

            def elapsed_time(self, end: "Event") -> float:
                return (end.at - self.at) * 1e3

        assert enable_timing
        return Event()


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    one = Simulated()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: one.cpu)
    for name, value in {
        "_sleep": one.sleep,
        "Event": one.event,
        "synchronize": one.wait,
        "set_device": lambda _: None,
        "get_device_properties": lambda _: types.SimpleNamespace(L2_cache_size=16),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return one


def test_launching_is_not_gpu_time(simulated: Simulated) -> None:
    def run() -> None:
        for _ in range(3):
            simulated.launch(100e-6, 20e-6)

    samples = clock.CudaClock(torch.device("cpu")).time(run, repeats=7)
    assert len(samples.ms) == 7
    assert samples.median == pytest.approx(0.06)
    assert samples.call == pytest.approx(300)
    assert samples.ahead


def test_a_slow_spell_of_the_cpu_makes_the_sleep_longer(simulated: Simulated) -> None:
    calls = []

    def run() -> None:  # the fourth call on, those measured, launch more slowly than the estimate
        calls.append(None)
        simulated.launch(1e-6 if len(calls) < 4 else 500e-6, 20e-6)

    samples = clock.CudaClock(torch.device("cpu")).time(run, repeats=5)
    assert samples.ahead
    assert samples.median == pytest.approx(0.02)
    assert max(simulated.slept) > min(simulated.slept)


def test_a_call_that_waits_for_the_gpu_is_told(simulated: Simulated) -> None:
    def run() -> None:
        simulated.launch(10e-6, 20e-6)
        simulated.wait()
        simulated.launch(10e-6, 20e-6)

    samples = clock.CudaClock(torch.device("cpu")).time(run, repeats=5)
    assert not samples.ahead
    assert samples.median == pytest.approx(0.05)  # the launch between the two is waited for


def test_long_calls_are_repeated_less_often(simulated: Simulated) -> None:
    def run() -> None:
        simulated.launch(10e-6, 1.0)

    assert len(clock.CudaClock(torch.device("cpu")).time(run, repeats=50, budget_s=0.5).ms) == clock.LEAST
    assert len(clock.CudaClock(torch.device("cpu")).time(run, repeats=2, budget_s=0.5).ms) == 2


def test_peak_is_beyond_what_was_there(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1_000)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: order.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 1_700)
    assert clock.CudaClock(torch.device("cpu")).peak(lambda: order.append("run")) == 700
    assert order == ["reset", "run"]


def test_quantiles() -> None:
    samples = clock.Samples(ms=[5.0, 1.0, 3.0, 2.0, 4.0, 6.0])
    assert [samples.at(x) for x in (0, 0.2, 0.8, 1)] == [1.0, 2.0, 5.0, 6.0]
    assert samples.median == 3.5
    joined = clock.Samples.joined([samples, clock.Samples(ms=[9.0], call_us=[1.0], ahead=False)])
    assert (len(joined.ms), joined.ahead) == (7, False)


def test_the_floor_of_the_contract() -> None:
    """131,072 tokens × 16 heads × 64 in bf16 at 4.25 TB/s: 0.253 and 0.758 ms."""
    for length, batch in ((1_024, 128), (65_536, 2)):
        shape = (batch, 16, length, 64, 2)
        assert floor_bytes(*shape, training=False) == 4 * 131_072 * 16 * 64 * 2
        assert floor_bytes(*shape, training=True) == 12 * 131_072 * 16 * 64 * 2
        assert result_bytes(*shape, training=True) == 4 * result_bytes(*shape, training=False) == 4 * 2**28
        row, rates = gpu.Row(CUDA, length, {}), Rates([4.25e12], [8e14])
        assert row.batch == batch
        assert row.floor_ms(gpu.FORWARD, rates) == pytest.approx(0.2526, abs=1e-4)
        assert row.floor_ms(gpu.TRAINING, rates) == pytest.approx(0.7579, abs=1e-4)
    assert linear_flops(64, 64) == 32_768
    assert softmax_flops(1_024, 64) == 131_072


def test_a_cell_by_hand() -> None:
    """Half the copy rate and 20% more memory than the output, at shapes where it can be reckoned."""
    bench = AttentionBench(lengths=(100,), heads=2, width=8)
    system = systems.System(name="x", group="fla", attend=lambda q, k, v: q, flops=lambda t, w: 1_000.0)
    output = 2 * 100 * 8 * 4
    runs = [clock.Samples(ms=[2.0, 2.0], call_us=[7.0, 7.0]), clock.Samples(ms=[4.0, 4.0], call_us=[9.0, 9.0])]
    cell = gpu.Cell(system, peak=output * 6 // 5, runs=runs)
    rates = Rates([4 * output / 1e-3], [1e9])  # forward floor: 1 ms
    seen = gpu.Row(bench, 100, {}).cell_json(gpu.FORWARD, cell, rates)
    assert seen["ms"] == 3.0
    assert seen["ms_by_run"] == [2.0, 4.0]
    assert seen["times_floor"] == pytest.approx(3.0)
    assert seen["share_of_matmul"] == pytest.approx(1_000 * 2 * 100 / 3e-3 / 1e9)
    assert seen["extra_percent"] == pytest.approx(20)
    assert seen["call_us"] == 8.0
    training = gpu.Row(bench, 100, {}).cell_json(gpu.TRAINING, cell, rates)
    assert training["times_floor"] == pytest.approx(1.0)
    assert training["share_of_matmul"] == pytest.approx(3.5 * 1_000 * 2 * 100 / 3e-3 / 1e9)


def quadratic(q: Tensor, k: Tensor, v: Tensor, *, scale: float, normalize: bool) -> tuple[Tensor, None]:
    """What fla's functions give, in its layout [B, T, H, K]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    w = (scale * q @ k.mT).tril()
    o = w @ v
    return (o / (w.sum(-1, keepdim=True) + 1e-10) if normalize else o).transpose(1, 2), None


@pytest.fixture
def fla(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.SimpleNamespace(chunk_linear_attn=quadratic, fused_chunk_linear_attn=quadratic)
    monkeypatch.setattr(systems, "importlib", types.SimpleNamespace(import_module=lambda name: module))


@pytest.fixture
def no_fla(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(systems, "importlib", types.SimpleNamespace(import_module=missing))


@pytest.mark.usefixtures("fla")
def test_cosformer_composed_from_fla_is_cosformer() -> None:
    found, left_out = systems.systems(("fla",))
    assert not left_out
    composed = next(s for s in found if s.name == systems.FLA_COMPOSED)
    assert all(s.tokens_first for s in found)
    q, k, v = (torch.randn(2, 37, 3, 8, dtype=torch.float64) for _ in range(3))
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    exact = attention_reference(*heads_first, causal=True)
    assert torch.allclose(composed.attend(q, k, v).transpose(1, 2), exact, atol=1e-9)


def test_missing_fla_is_told(no_fla: None) -> None:
    found, left_out = systems.systems()
    assert [s.group for s in found] == ["ours", "ours", "sdpa", "sdpa", "torch"]
    assert set(left_out) == {systems.FLA_NORMALISED, systems.FLA_SUM, systems.FLA_COMPOSED}
    for reason in left_out.values():
        assert "No module named 'fla.ops.linear_attn'" in reason
        assert "cosformer[bench]" in reason


def stub(name: str, group: str, attend) -> systems.System:
    return systems.System(name=name, group=group, attend=attend, flops=lambda t, w: 1.0)


def measured(each: list[systems.System], bench: AttentionBench = BENCH) -> list[dict]:
    rows, rates = gpu.measure(bench, each, clock.HostClock(), copied=1 << 12, side=16)
    assert len(rates.copies) == len(rates.products) == gpu.RUNS
    return json.loads(json.dumps([row.to_json(rates) for row in rows]))


def refuses(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    warnings.warn("Flash attention kernel not used because: (Triggered internally at x.cpp:1.)", stacklevel=1)
    warnings.warn("head width is odd", stacklevel=1)
    raise RuntimeError("No available kernel. Aborting execution.\nmore")


def exhausts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 68 GiB")


def test_who_refuses_is_a_cell_with_the_reason() -> None:
    for row in measured(
        [stub("a", "sdpa", refuses), stub("b", "torch", exhausts), stub("c", "fla", lambda q, k, v: q)]
    ):
        for mode in (gpu.FORWARD, gpu.TRAINING):
            reason = row[mode]["a"]["reason"]
            assert reason.startswith(
                "RuntimeError: No available kernel. Aborting execution.; Flash attention kernel not"
            )
            assert reason.endswith("; head width is odd")
            assert "Triggered" not in reason
            assert row[mode]["b"] == {"reason": "out of memory"}
        assert row[gpu.FORWARD]["c"]["ms"] > 0
        assert "unused" in row[gpu.TRAINING]["c"]["reason"] or "not have been used" in row[gpu.TRAINING]["c"]["reason"]


def test_memory_may_run_out_later() -> None:
    calls = []

    def at_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        calls.append(None)
        return exhausts(q, k, v) if len(calls) > 4 else q

    assert measured([stub("a", "fla", at_first)])[0][gpu.FORWARD]["a"] == {"reason": "out of memory"}


def test_a_fault_of_ours_is_not_a_cell() -> None:
    with pytest.raises(RuntimeError, match="No available kernel"):
        measured([stub("ours", "ours", refuses)])


def test_a_lost_device_ends_the_run() -> None:
    def lost(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        measured([stub("a", "fla", lost)])


def test_softmax_is_not_asked_beyond_its_limit(no_fla: None) -> None:
    found, _ = systems.systems(("sdpa", "ours"))
    bench = AttentionBench(
        lengths=(24, 40), tokens=80, heads=2, width=8, repeats=2, softmax_limit=40, softmax_backward_limit=24
    )
    short, long = measured(found, bench)
    assert short[gpu.TRAINING][systems.FLASH]["ms"] > 0
    assert long[gpu.FORWARD][systems.FLASH]["ms"] > 0
    assert long[gpu.TRAINING][systems.FLASH] == {"reason": "not asked beyond 24 tokens"}
    assert "ms" in long[gpu.TRAINING][systems.CAUSAL]


def test_everything_is_warmed_before_anything_is_timed() -> None:
    order: list[str] = []

    class Told(clock.HostClock):
        def time(self, run, *, repeats: int, budget_s: float = 0.5) -> clock.Samples:
            order.append("time")
            return clock.Samples(ms=[1.0], call_us=[1.0])

        def peak(self, run) -> int | None:
            order.append("peak")
            return 1

    gpu.measure(BENCH, systems.systems(("ours",))[0], Told(), copied=16, side=2, said=order.append)
    assert len([x for x in order if "tokens" in x]) == gpu.stages(BENCH)
    assert "peak" not in order[order.index("time") :]
    assert order.count("peak") == 8  # two lengths, two modes, two systems
    assert order.count("time") == gpu.RUNS * (2 + 8)


def test_the_whole_command_writes_table_json_and_plot(
    fla: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    small = gpu.measure
    monkeypatch.setattr(gpu, "measure", lambda *x, **o: small(*x, copied=1 << 12, side=16, **o))
    monkeypatch.setattr(environment, "configurations", lambda: {"K=64": "4 warps"})
    out, picture = tmp_path / "r.json", tmp_path / "r.png"
    bench_gpu.attention_on_gpu(BENCH, {"x": 0.0}, systems.GROUPS, out, picture, Console(stderr=True))
    result = json.loads(out.read_text())
    assert result["benchmark"] == "attention on cuda"
    assert {"device", "date", "commit", "versions", "command", "backend", "left_out"} <= result.keys()
    assert result["configurations"] == {"K=64": "4 warps"}
    assert result["settings"] == {"tokens": 80, "heads": 2, "width": 8, "dtype": "fp32", "repeats": 2}
    assert result["rates"]["copy_gb_per_s"] > 0
    assert [(row["length"], row["batch"]) for row in result["rows"]] == [(24, 3), (40, 2)]
    names = {s.name for s in systems.systems()[0]}
    assert len(names) == 8
    for row in result["rows"]:
        assert row["floor_ms"]["forward_backward"] == pytest.approx(3 * row["floor_ms"]["forward"])
        for mode in (gpu.FORWARD, gpu.TRAINING):
            assert set(row[mode]) == names
            ours = row[mode][systems.CAUSAL]
            assert ours["p20"] <= ours["ms"] <= ours["p80"]
            assert len(ours["ms_by_run"]) == 2
            assert ours["times_floor"] == pytest.approx(ours["ms"] / row["floor_ms"][mode])
            assert "reason" in row[mode][systems.CUDNN]  # there is no cuDNN on a CPU
    shown = capsys.readouterr().out
    assert "× floor" in shown
    assert systems.FLA_COMPOSED in shown
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_system_has_its_colour(fla: None) -> None:
    assert {s.name for s in systems.systems()[0]} == set(report.COLOURS)
