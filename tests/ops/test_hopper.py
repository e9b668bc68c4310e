"""What can be checked of the Hopper kernels without a GPU: that they compile for it and fit, and the host's share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.torch_version import TorchVersion as Version

from cosformer import cosformer_attention

triton = pytest.importorskip("triton", reason="Triton is not installed")
hopper = pytest.importorskip("cosformer.ops.triton.hopper", reason="this Triton has no Gluon")
launch = pytest.importorskip("cosformer.ops.triton.launch")
call = pytest.importorskip("cosformer.ops.triton.hopper_call")

TWO_A_PROCESSOR = {
    "sum_kernel": 3, "forward_kernel": 3, "backward_q_kernel": 3, "backward_kv_kernel": 3,
    "values_kernel": 1, "values_kernel back": 1, "features_kernel": 1, "features_kernel back": 1,
}  # fmt: skip
"""And how many cases are compiled of each."""
ALONE = {"wide_sum_kernel": 3, "values_walk": 2, "features_walk": 2, "keys_walk": 2}
SPILLED = {
    "backward_kv_kernel plain": 128,
    "wide_sum_kernel plain": 32,
    "values_walk plain": 32,
    "features_walk plain": 64,
    "keys_walk plain": 160,
}
needs_its_compiler = pytest.mark.skipif(
    not Version("3.6") <= Version(triton.__version__) < Version("3.8"), reason="counted with Triton 3.6 and 3.7"
)


@pytest.fixture(scope="module")
def usage() -> dict[str, dict[str, int]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    script = Path(__file__).parent / "compile_hopper.py"
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("kernel", [*TWO_A_PROCESSOR, *ALONE])
def test_compiles_and_fits(kernel: str, usage: dict[str, dict[str, int]]) -> None:
    """228 KiB of shared memory and 64 Ki registers hold two programs, or one."""
    programs = 2 if kernel in TWO_A_PROCESSOR else 1
    each = [used for name, used in usage.items() if name.rsplit(maxsplit=1)[0] == kernel]
    assert len(each) == {**TWO_A_PROCESSOR, **ALONE}[kernel]
    for used in each:
        assert programs * (used["shared"] + 1024) <= 228 * 1024
        assert programs * used["threads"] * used["registers"] <= 65536


@needs_its_compiler
def test_keeps_its_numbers_in_registers(usage: dict[str, dict[str, int]]) -> None:
    """Spilling doubled the time of one of them once; those that still do are down to a few numbers."""
    usual = {name: used["spilled"] for name, used in usage.items() if not name.endswith(" odd")}
    assert len(usual) >= 15
    assert {name: count for name, count in usual.items() if count > SPILLED.get(name, 0)} == {}


@needs_its_compiler
def test_products_run_by_themselves(usage: dict[str, dict[str, int]]) -> None:
    """Short of registers, the compiler waits for each product before it starts the next."""
    assert len(usage) >= 20
    assert {name: used for name, used in usage.items() if used["waits"] > used["products"] // 4} == {}


def test_a_state_survives_the_way_in_and_out() -> None:
    state = torch.randn(2, 3, 2, 4, 5, dtype=torch.float64)
    there = call._absolute(state, 6, 0.1)
    assert torch.allclose(call._seen(there, 6, 0.1), state)


@pytest.mark.parametrize("lengths", [(1,), (64, 64), (100_000,), (7_000, 7_000)])
def test_a_batch_is_cut_into_equal_stretches(lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_properties", lambda device: (True, 132))
    cut = call._cut.__wrapped__(lengths, False, 2, torch.device("cpu"))
    assert cut.slots == len(lengths) * cut.stretches
    assert cut.stretch % call.CHUNK == 0
    assert (cut.stretches - 1) * cut.stretch < lengths[0] <= cut.stretches * cut.stretch
    assert cut.slots * 2 <= 2 * 132


def test_a_pack_is_cut_within_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_properties", lambda device: (True, 132))
    lengths = (3, 50_000, 256, 1)
    cut = call._cut.__wrapped__(lengths, True, 2, torch.device("cpu"))
    assert cut.table is not None
    assert cut.firsts is not None
    covered = [0] * len(lengths)
    for sequence, first in cut.table.tolist():
        assert first == covered[sequence]
        covered[sequence] = min(first + cut.stretch, lengths[sequence])
    assert tuple(covered) == lengths
    counts = cut.firsts.diff().tolist()
    assert counts == [cut.table[:, 0].tolist().count(i) for i in range(len(lengths))]


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # the interpreter itself, triton 3.6
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_scan_between_stretches(packed: bool, reverse: bool) -> None:
    """Interpreted."""
    from cosformer.ops.triton.kernels import scan_kernel

    counts = [1, 4, 2] if packed else [3, 3]
    firsts = torch.tensor([0, *counts]).cumsum(0).int()
    x, init = torch.randn(sum(counts), 2, 700), torch.randn(len(counts), 2, 700)
    got, total = x.clone(), torch.full_like(init, torch.nan)
    scan_kernel[(len(counts) * 2, 2)](
        got, init, total, firsts, 700, 2, counts[0], BLOCK=512, PACKED=packed, REVERSE=reverse, INIT=True
    )
    for i, count in enumerate(counts):
        at = int(firsts[i])
        order = range(at, at + count)
        running = init[i].double()
        for j in reversed(order) if reverse else order:
            torch.testing.assert_close(got[j].double(), running, rtol=1e-5, atol=1e-5)
            running = running + x[j]
        torch.testing.assert_close(total[i].double(), running, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # the interpreter itself, triton 3.6
def test_kernels_that_do_not_compile_give_way_and_say_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise hopper.Unusable("Triton 9 does not compile forward_kernel: no such layout")

    for name, value in {"takes": lambda *_: True, "forward": refuse, "backward": refuse}.items():
        monkeypatch.setattr(hopper, name, value)
    monkeypatch.setattr(launch, "_hopper", lambda device: hopper)
    monkeypatch.setattr(launch, "_given_up", {})
    q, k, v = (torch.randn(1, 1, 10, 8, requires_grad=True) for _ in range(3))

    def run() -> Tensor:
        o = cosformer_attention(q, k, v, causal=True, backend="triton")
        o.sum().backward()
        return o

    with pytest.warns(RuntimeWarning, match="no such layout"):
        o = run()
    torch.testing.assert_close(o, cosformer_attention(q, k, v, causal=True, backend="torch"))
    run()  # a second warning would be an error
    assert list(launch._given_up) == ["narrow"]  # wide heads are still to be tried
