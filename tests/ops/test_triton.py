"""The Triton kernels, interpreted on the CPU over small shapes; on a GPU (marker gpu) the same and larger ones."""

import sys
from dataclasses import replace

import pytest
import torch
from comparing import worst
from definition import Case
from kernel_check import DEVICE, check

from cosformer import AttentionState, attention_step, cosformer_attention

pytest.importorskip("triton", reason="Triton is not installed")
from cosformer.ops.triton import generic

pytestmark = [
    pytest.mark.usefixtures("_poisoned"),
    pytest.mark.filterwarnings(
        "ignore:Conversion of an array:DeprecationWarning"
    ),  # the interpreter itself, triton 3.6
]

gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")

SMALL = [
    Case(T=1, S=1, K=8, V=8, B=1, H=1, Hkv=1),
    Case(T=63, S=63, K=16, V=16, B=1, H=1, Hkv=1),
    Case(T=65, S=65, K=24, V=40, B=1),
    Case(T=1100, S=1100, K=8, V=8, B=1, H=1, Hkv=1),
    Case(T=20, S=90, K=12, V=20, B=1),
    Case(T=45, S=77, H=4, Hkv=2, K=8, V=8, B=1),
    Case(T=70, S=70, masked=True, B=1),
    Case(T=20, S=35, past=61, masked=True, H=2, Hkv=1, K=8, V=12),
]
LARGE = [
    *(Case(T=t, S=t, K=64, V=64, B=2, H=4, Hkv=2) for t in (63, 64, 1000)),
    Case(T=1000, S=1000, K=128, V=128, B=2, H=4, Hkv=2),
    Case(T=300, S=500, past=70, K=72, V=128, B=2, H=4, Hkv=2, masked=True),
    *(
        Case(T=65, S=65, K=k, V=v, B=2, H=4, Hkv=2, masked=True)
        for k, v in ((8, 8), (24, 40), (40, 16), (80, 96), (128, 128), (128, 24), (256, 256), (24, 256))
    ),
]
MAPS = [
    Case(T=20, S=30, H=2, Hkv=1, B=1, K=8, V=8, masked=True, feature_map=name, normalize=normalize)
    for name in ("relu", "identity", "leaky_relu", "elu1", "silu") for normalize in (True, False)
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_small_shapes_are_as_good_as_eager(case: Case, causal: bool, dtype: torch.dtype) -> None:
    check(replace(case, causal=causal, dtype=dtype))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", MAPS, ids=str)
def test_feature_maps(case: Case, causal: bool) -> None:
    check(replace(case, causal=causal, dtype=torch.float32))


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large_shapes_are_as_good_as_eager(case: Case, causal: bool, dtype: torch.dtype) -> None:
    check(replace(case, causal=causal, dtype=dtype))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("t", "s"), [(300, 300), (200, 333)])
def test_cut_across_the_chip(causal: bool, t: int, s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few heads and a long sequence: states of stretches, a short scan, then outputs."""
    monkeypatch.setattr(generic, "SHORTEST_STRETCH", 64)
    monkeypatch.setattr(generic, "_processors", lambda device: 3)
    check(Case(T=t, S=s, past=40, K=8, V=8, B=1, H=1, Hkv=1, causal=causal, dtype=torch.float32))


@pytest.mark.parametrize("causal", [True, False])
def test_packed_equals_the_torch_form(causal: bool) -> None:
    lengths = [5, 70, 1]
    cu = torch.tensor([0, *lengths]).cumsum(0)
    q = torch.randn(1, 2, 76, 8, requires_grad=True)
    k, v = (torch.randn(1, 1, 76, w, requires_grad=True) for w in (8, 5))
    mask = torch.rand(1, 76) > 0.2
    runs = []
    for backend, device in (("triton", DEVICE), ("torch", "cpu")):
        o, state = cosformer_attention(
            q.to(device), k.to(device), v.to(device), causal=causal, horizon=80, cu_seqlens=cu.to(device),
            key_mask=mask.to(device), return_state=True, backend=backend,
        )  # fmt: skip
        o, sums = o.cpu(), state.sums.cpu()
        runs.append([o, sums, *torch.autograd.grad((o, sums), (q, k, v), (torch.ones_like(o), torch.ones_like(sums)))])
    for a, b in zip(*runs, strict=True):
        assert worst(a, b) <= 200 * torch.finfo(torch.float32).eps * b.abs().max().item()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [2, 4])
def test_steps_equal_the_torch_form(heads: int, masked: bool) -> None:
    states = [AttentionState.zeros(2, 2, 12, 20, horizon=50, device=d) for d in (DEVICE, "cpu")]
    for _ in range(6):
        q, k, v = torch.randn(2, heads, 1, 12), torch.randn(2, 2, 1, 12), torch.randn(2, 2, 1, 20)
        mask = torch.rand(2, 1) > 0.3 if masked else None
        got = attention_step(
            q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), states[0], key_mask=None if mask is None else mask.to(DEVICE),
            backend="triton",
        )  # fmt: skip
        want = attention_step(q, k, v, states[1], key_mask=mask, backend="torch")
        assert worst(got.cpu(), want) <= 50 * torch.finfo(torch.float32).eps * 4
    assert worst(states[0].sums.cpu(), states[1].sums) <= 50 * torch.finfo(torch.float32).eps * 10


@pytest.mark.parametrize(("where", "untouched"), [("q", 70), ("k", 70), ("v", 64)])
def test_what_is_not_finite_reaches_no_earlier_row_or_chunk(where: str, untouched: int) -> None:
    """A value that is not finite still spoils earlier rows of its own chunk of 64 (docs/kernels.md); a key does not."""
    x = {name: torch.rand(1, 1, 100, 8, device=DEVICE) + 0.1 for name in ("q", "k", "v")}
    clean = cosformer_attention(**x, causal=True, backend="triton")
    x[where][:, :, 70, 3] = torch.nan
    spoilt = cosformer_attention(**x, causal=True, backend="triton")
    assert torch.equal(spoilt[:, :, :untouched], clean[:, :, :untouched])
    assert spoilt[:, :, 70].isnan().any()


def test_what_it_cannot_take_is_refused() -> None:
    wide = torch.randn(1, 1, 4, 300, device=DEVICE)
    with pytest.raises(RuntimeError, match="width 300 is wider"):
        cosformer_attention(wide, wide, wide, backend="triton")
    double = torch.randn(1, 1, 4, 8, device=DEVICE, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="float64 has no Triton kernel"):
        cosformer_attention(double, double, double, backend="triton")


def test_without_triton_an_explicit_choice_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cosformer.ops.triton", None)
    x = torch.randn(1, 1, 4, 8, device=DEVICE)
    with pytest.raises(RuntimeError, match="Triton is missing or too old"):
        cosformer_attention(x, x, x, backend="triton")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("past", [0, 30])
def test_wide_heads_in_parts(causal: bool, past: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner width is cut where registers end; here after 16 columns."""
    monkeypatch.setitem(generic.WIDEST_PART, torch.float32, 16)
    check(Case(T=70, S=70, past=past, K=40, V=24, B=1, masked=True, causal=causal, dtype=torch.float32))
