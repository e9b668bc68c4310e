"""The Hopper kernels, run on a CPU by gluon_emulator.py over small shapes, with the bounds of the other kernels."""

from dataclasses import replace

import gluon_emulator
import pytest
import torch
from comparing import assert_as_good_as_eager
from definition import Case
from kernel_check import check

from cosformer import AttentionState, cosformer_attention
from cosformer.ops.features import sum_dtype
from cosformer.ops.joined import joined_attention, parts

hopper = pytest.importorskip("cosformer.ops.triton.hopper", reason="this Triton has no Gluon")
launch = pytest.importorskip("cosformer.ops.triton.launch")
call = pytest.importorskip("cosformer.ops.triton.hopper_call")

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run here"),
    pytest.mark.usefixtures("_poisoned"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]

CASES = [
    Case(T=1, S=1, K=8, V=8, B=1, H=1, Hkv=1),
    Case(T=64, S=64, K=64, V=64, B=1, H=1, Hkv=1),
    Case(T=150, S=150, K=24, V=40, B=1, masked=True),
    Case(T=45, S=77, H=4, Hkv=2, K=8, V=8, B=1),
    Case(T=20, S=190, K=16, V=24, B=1, H=1, Hkv=1),
    Case(T=20, S=35, past=61, masked=True, H=2, Hkv=1, K=8, V=16),
    Case(T=70, S=70, past=20, K=8, V=8, B=1, H=1, Hkv=1, normalize=False),
    *(
        Case(T=70, S=80, H=1, Hkv=1, B=1, K=8, V=8, feature_map=name)
        for name in ("elu1", "silu", "leaky_relu", "identity")
    ),
]


WIDE = [
    Case(T=64, S=64, K=128, V=128, B=1, H=1, Hkv=1),
    Case(T=150, S=150, K=72, V=104, B=1, masked=True),
    Case(T=20, S=190, K=16, V=72, B=1, H=1, Hkv=1),
    Case(T=20, S=35, past=61, masked=True, H=2, Hkv=1, K=72, V=16),
    Case(T=70, S=70, past=20, K=72, V=8, B=1, H=1, Hkv=1, normalize=False),
    Case(T=70, S=80, K=8, V=72, B=1, H=1, Hkv=1, feature_map="elu1"),
]


@pytest.fixture(params=["early", "late"])
def emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    late = request.param == "late"

    def run(kernel, programs: int, warps: int, *args: object, **flags: object) -> None:
        gluon_emulator.run(kernel.__name__, programs, *args, late=late, **flags)

    monkeypatch.setattr(call, "launch", run)
    monkeypatch.setattr(hopper, "takes", lambda *x: all(t.shape[3] % 8 == 0 for t in x))
    monkeypatch.setattr(call, "_properties", lambda device: (True, 1))
    monkeypatch.setattr(call, "ensure_context", lambda: None)
    monkeypatch.setattr(launch, "_hopper", lambda device: hopper)
    call._cut.cache_clear()
    yield
    call._cut.cache_clear()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", [*CASES, *WIDE], ids=str)
def test_as_good_as_eager(case: Case, causal: bool) -> None:
    check(replace(case, causal=causal, dtype=torch.bfloat16))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [8, 72])
@pytest.mark.parametrize(("t", "s"), [(600, 600), (300, 610)])
def test_cut_across_the_chip(causal: bool, t: int, s: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few heads and a long sequence: states of stretches, a scan, then outputs."""
    monkeypatch.setattr(call, "_properties", lambda device: (True, 6))
    check(Case(T=t, S=s, past=40, K=width, V=16, B=1, H=1, Hkv=1, causal=causal, dtype=torch.bfloat16))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("width", [8, 72])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_equals_the_torch_form(causal: bool, normalize: bool, groups: int, width: int) -> None:
    """With states, masks and gradients of both; the second sequence is cut."""
    lengths = [5, 400, 1, 64]
    total = sum(lengths)
    cu = torch.tensor([0, *lengths]).cumsum(0)
    drawn = [torch.randn(1, heads, total, width).bfloat16() for heads in (groups, 1, 1)]
    mask = torch.rand(1, total) > 0.2
    g_o, g_s = torch.randn(1, groups, total, width), torch.randn(4, 1, 2, width, width)
    runs = []
    for backend, dtype in (("triton", torch.bfloat16), ("torch", torch.float64)):
        x = [t.to(dtype).requires_grad_() for t in drawn]
        first = torch.rand(4, 1, 2, width, width, generator=torch.Generator().manual_seed(1)).to(sum_dtype(dtype))
        norm = first.sum(-1).contiguous().requires_grad_()
        first.requires_grad_()
        state = AttentionState(sums=first, norm=norm, length=9, horizon=500)
        o, state = cosformer_attention(
            *x, causal=causal, horizon=500, cu_seqlens=cu, key_mask=mask, state=state, return_state=True,
            normalize=normalize, backend=backend,
        )  # fmt: skip
        loss = (o * g_o).sum() + (state.sums * g_s).sum() + (state.norm * g_s[..., 0]).sum()
        runs.append([o, state.sums, state.norm, *torch.autograd.grad(loss, [*x, first, norm])])
    for got, want in zip(*runs, strict=True):
        assert got.isfinite().all()
        assert (got.double() - want.double()).norm() <= 0.02 * want.double().norm()


@pytest.mark.parametrize("broken", ["wait", "barrier", "poison", "sides"])
def test_the_emulator_notices(broken: str) -> None:
    """A wait that stops short, bytes that nobody expects, memory that nobody wrote, warps that wait for each other."""
    chip = gluon_emulator.Chip(0, late=True)
    tile = gluon_emulator.Shared(torch.ones(16, 16, dtype=torch.bfloat16))
    if broken == "wait":
        first = chip.mma(tile, tile, torch.zeros(16, 16), is_async=True)
        second = chip.mma(tile, tile, torch.zeros(16, 16), is_async=True)
        chip.mma_wait(1, [first])
        with pytest.raises(AssertionError, match="before the wait"):
            chip.mma_wait(1, [second])
    elif broken == "barrier":
        barriers = chip.language.allocate_shared_memory(torch.int64, [1, 1], "barrier")
        chip.mbarrier.expect(barriers.index(0), 100)
        with pytest.raises(AssertionError, match="expected"):
            chip.mbarrier.wait(barriers.index(0), 0)
    elif broken == "sides":
        barriers = chip.language.allocate_shared_memory(torch.int64, [2, 1], "barrier")

        def side(mine: int) -> None:
            chip.mbarrier.wait(barriers.index(1 - mine), 0)
            chip.mbarrier.arrive(barriers.index(mine), count=1)

        with pytest.raises(AssertionError, match="all sides wait"):
            chip.language.warp_specialize([(side, (0,)), (side, (1,))], [4], [24])
    else:
        fresh = chip.language.allocate_shared_memory(torch.bfloat16, [16, 16], None)
        product = chip.mma(tile, fresh, torch.zeros(16, 16), is_async=True)
        assert chip.mma_wait(0, [product]).isnan().all()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [16, 72])
def test_a_clock_that_stands_still(width: int, causal: bool) -> None:
    """As cosformer.rivals call them: features as they are, every cosine 1, sums far below the usual eps."""
    drawn = [(torch.rand(1, 2, 150, n) * scale).bfloat16() for n, scale in ((width, 1e-5), (width, 1e-5), (16, 1))]
    found = []
    for dtype in (None, torch.bfloat16, torch.float64):
        x = [t.to(dtype or torch.bfloat16).requires_grad_() for t in drawn]
        if dtype is None:
            o = cosformer_attention(
                *x, causal=causal, horizon=2**62, feature_map="identity", eps=1e-30, backend="triton"
            )
        else:
            w = x[0] @ x[1].mT
            w = w.tril() if causal else w
            o = w @ x[2] / w.sum(-1, keepdim=True)
        found.append([o, *torch.autograd.grad(o.double().square().sum(), x)])
    for got, eager, exact, size, factor in zip(*found, (1.0, 1e5, 1e5, 1.0), (2, 3, 3, 3), strict=True):
        assert_as_good_as_eager(got, eager, exact, size=size, factor=factor)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("chip", [1, 6])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("width", "shared"), [(8, 2), (8, 1), (72, 2)])
def test_gradients_are_written_side_by_side(
    width: int, shared: int, causal: bool, masked: bool, chip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of q, k and v in one tensor: the same bits as apart, and nothing is copied unless heads share keys."""
    monkeypatch.setattr(call, "_properties", lambda device: (True, chip))
    written: list[bool] = []
    plain = hopper.backward

    def backward(*arguments):
        found, into = plain(*arguments), arguments[-1]
        if into is not None:
            written.append(all(made is here for made, here in zip(found[:3], into, strict=True)))
        return found

    monkeypatch.setattr(hopper, "backward", backward)
    qkv = torch.randn(2, 150, 2 + 2 * shared, width).bfloat16().requires_grad_()
    mask = torch.rand(2, 150) > 0.2 if masked else None
    options = {"horizon": 200, "causal": causal, "key_mask": mask, "backend": "triton"}
    o = joined_attention(qkv, 2, **options)
    apart = cosformer_attention(*parts(qkv, 2), **options)
    assert torch.equal(o, apart)
    weights = torch.randn(o.shape)
    (got,), (want,) = (torch.autograd.grad((x * weights).sum(), qkv) for x in (o, apart))
    assert torch.equal(got, want)
    assert written == [shared == 2]
