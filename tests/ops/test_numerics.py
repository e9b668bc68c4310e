"""Rows without weight, values at the edge, NaN and inf, a million tokens."""

import math

import pytest
import torch
from comparing import worst
from definition import define

from cosformer import AttentionState, attention_reference, attention_step, cosformer_attention
from cosformer.ops.features import FEATURE_MAPS

LOW = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, *LOW], ids=str)
def test_rows_without_weight_give_zero_and_finite_gradients(dtype: torch.dtype, causal: bool, backend: str) -> None:
    q, k, v = (torch.randn(2, 2, 70, 8).to(dtype) for _ in range(3))
    q[:, :, 10:20] = -1  # relu kills these queries
    q[:, :, 5] = 0
    k[0] = -1  # and all keys of this batch row
    mask = torch.ones(2, 70, dtype=torch.bool)
    mask[1, :30] = False  # causal: the first 30 rows of the other have no key
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    o = cosformer_attention(q, k, v, causal=causal, key_mask=mask, backend=backend)
    assert o.isfinite().all()
    assert not o[:, :, 10:20].any()
    assert not o[:, :, 5].any()
    assert not o[0].any()
    if causal:
        assert not o[1, :, :30].any()
    grads = torch.autograd.grad(o, (q, k, v), torch.randn_like(o))
    for g in grads:
        assert g.isfinite().all()
    assert not grads[0][:, :, 10:20].any()
    assert not grads[1][1, :, :30].any()
    assert not grads[2][1, :, :30].any()
    assert grads[0].any()


@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1e4, 1e14])
@pytest.mark.parametrize("causal", [True, False])
def test_scale_of_queries_and_keys_cancels(scale: float, causal: bool, backend: str) -> None:
    """... until the denominator reaches eps, where rows fade to 0 instead of blowing up."""
    q, k, v = (torch.randn(1, 2, 100, 16) for _ in range(3))
    q, k = q.abs() + 0.5, k.abs() + 0.5
    o = cosformer_attention(q * scale, k * scale, v, causal=causal, backend=backend)
    want = attention_reference(q.double() * scale, k.double() * scale, v.double(), causal=causal)
    assert worst(o, want) <= 100 * torch.finfo(torch.float32).eps * v.abs().max().item()
    if scale == 1e-12:
        assert o.abs().max() < 1e-12 / 1e-6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("at", [0, 17, 40, 63, 99])
def test_not_finite_reaches_only_the_rows_that_see_it(bad: float, where: str, at: int, backend: str) -> None:
    x = {name: torch.rand(2, 2, 100, 8) + 0.1 for name in ("q", "k", "v")}
    clean = cosformer_attention(**x, causal=True, backend=backend)
    x[where][0, 1, at, 3] = bad
    o = cosformer_attention(**x, causal=True, backend=backend)
    rows = torch.zeros(2, 2, 100, dtype=torch.bool)
    rows[0, 1, at if where == "q" else slice(at, None)] = True
    if where == "q":
        rows[0, 1] = torch.arange(100) == at
    assert torch.equal(o[~rows], clean[~rows])
    assert not o[rows].isfinite().all(-1).any()
    full = cosformer_attention(**x, backend=backend)
    seen = (
        rows
        if where == "q"
        else torch.zeros_like(rows).index_put((torch.tensor(0), torch.tensor(1)), torch.tensor(True))
    )
    assert full[~seen].isfinite().all()
    assert not full[seen].isfinite().all(-1).any()


def test_a_gradient_that_is_not_finite_does_not_reach_later_keys(backend: str) -> None:
    x = {name: (torch.rand(1, 1, 100, 8) + 0.1).requires_grad_() for name in ("q", "k", "v")}
    o = cosformer_attention(**x, causal=True, backend=backend)
    do = torch.ones_like(o)
    do[:, :, 45] = math.nan
    dq, dk, dv = torch.autograd.grad(o, tuple(x.values()), do)
    assert dq[:, :, 45].isnan().all()
    assert dq[:, :, :45].isfinite().all()
    assert dq[:, :, 46:].isfinite().all()
    for g in (dk, dv):
        assert g[:, :, 46:].isfinite().all()
        assert g[:, :, :46].isnan().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("causal", [True, False])
def test_masked_keys_vanish_whatever_they_hold(bad: float, causal: bool, backend: str) -> None:
    q, k, v = (torch.randn(2, 2, 70, 8, requires_grad=True) for _ in range(3))
    mask = torch.rand(2, 70) > 0.4
    mask[:, 0] = True

    def run(fill: float) -> list[torch.Tensor]:
        spoil = torch.where(mask[:, None, :, None], 0.0, fill)
        kk, vv = (x.detach() + spoil for x in (k, v))
        kk, vv = kk.requires_grad_(), vv.requires_grad_()
        o = cosformer_attention(q, kk, vv, causal=causal, key_mask=mask, backend=backend)
        return [o, *torch.autograd.grad(o, (q, kk, vv), torch.ones_like(o))]

    for a, b in zip(run(bad), run(0.0), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_on_either_side_changes_nothing(side: str, causal: bool, backend: str) -> None:
    q, k, v = (torch.randn(1, 2, 40, 8, dtype=torch.float64) for _ in range(3))
    want = cosformer_attention(q, k, v, causal=causal, horizon=60, backend=backend)
    pad = (0, 0, 13, 0) if side == "left" else (0, 0, 0, 13)
    padded = [torch.nn.functional.pad(x, pad, value=5.0) for x in (q, k, v)]
    mask = torch.nn.functional.pad(torch.ones(1, 40, dtype=torch.bool), pad[2:])
    o = cosformer_attention(*padded, causal=causal, horizon=60, key_mask=mask, backend=backend)
    o = o[:, :, 13:] if side == "left" else o[:, :, :40]
    assert worst(o, want) <= 60 * torch.finfo(torch.float64).eps * v.abs().max().item()


def test_a_longer_sequence_keeps_the_outputs_of_its_prefix(backend: str) -> None:
    q, k, v = (torch.randn(1, 2, 90, 8) for _ in range(3))
    long = cosformer_attention(q, k, v, causal=True, horizon=128, backend=backend)
    short = cosformer_attention(q[:, :, :50], k[:, :, :50], v[:, :, :50], causal=True, horizon=128, backend=backend)
    assert worst(long[:, :, :50], short) <= 50 * torch.finfo(torch.float32).eps * v.abs().max().item()


@pytest.mark.parametrize("causal", [True, False])
def test_exact_at_a_million_tokens(causal: bool, compiled: None) -> None:
    """T = 1,000,003: chosen rows against the definition in float64. No angle grows, so no digit is lost."""
    n, width = 1_000_003, 8
    q, k, v = (torch.randn(1, 1, n, width) for _ in range(3))
    o = cosformer_attention(q, k, v, causal=causal, horizon=n, backend="cpu")
    for t in (0, 1, 1023, 1024, 500_001, n - 1):
        seen = t + 1 if causal else n
        want = define(
            q[0, 0, t : t + 1].double(), k[0, 0, :seen].double(), v[0, 0, :seen].double(), at_q=torch.tensor([t]),
            at_k=torch.arange(seen), keep=torch.ones(1, seen, dtype=torch.bool), horizon=n,
        )  # fmt: skip
        # random roundings add up like √n: 1,000 turns of the state and 31,250 chunks, at the size of v
        bound = math.sqrt(n / 32 + n / 1024) * torch.finfo(torch.float32).eps * v.abs().max().item()
        assert worst(o[0, 0, t : t + 1], want) <= bound


SHARPEST = 6_400  # the length at which rounding cos θ to fp32 hurts most: see the guard below


@pytest.mark.parametrize(
    ("n", "dtype"), [*((SHARPEST, dtype) for dtype in LOW), (100_000, torch.bfloat16)], ids=str
)  # fmt: skip
def test_long_decoding_keeps_its_size_and_its_digits(n: int, dtype: torch.dtype, compiled: None) -> None:
    width = 4
    q, k, v = (torch.randn(1, 1, n, width).to(dtype) for _ in range(3))
    state = AttentionState.zeros(1, 1, width, width, horizon=n)
    size, o = state.nbytes, q[:, :, :1]
    for t in range(n):
        o = attention_step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state, backend="cpu")
    assert state.nbytes == size
    assert state.length == n
    _, exact = cosformer_attention(q.double(), k.double(), v.double(), causal=True, horizon=n, return_state=True)
    want = cosformer_attention(q[:, :, -1:].double(), k.double(), v.double(), causal=True, horizon=n)
    drift = math.sqrt(n) * torch.finfo(torch.float32).eps  # random roundings, one a step
    assert worst(state.sums, exact.sums) <= drift * exact.sums.abs().max().item()
    assert worst(o, want) <= torch.finfo(dtype).eps * want.abs().max().item() + 2 * drift * v.abs().max().item()


def test_the_drift_guard_sees_a_naive_turn() -> None:
    """The bound above is sharp: turning by cos θ and sin θ rounded to fp32 would break it twentyfold."""
    theta = math.pi / (2 * SHARPEST)
    rounded = complex(*torch.tensor([math.cos(theta), math.sin(theta)], dtype=torch.float32).tolist())
    error = abs(rounded**SHARPEST - 1j)
    assert error > 10 * math.sqrt(SHARPEST) * torch.finfo(torch.float32).eps


def test_results_do_not_depend_on_the_run(backend: str) -> None:
    q, k, v = (torch.randn(2, 4, 200, 16, requires_grad=True) for _ in range(3))
    runs = []
    for _ in range(3):
        o = cosformer_attention(q, k, v, causal=True, backend=backend)
        runs.append([o, *torch.autograd.grad(o, (q, k, v), torch.ones_like(o))])
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("reach", [3000, 1500])
def test_cut_along_time_when_there_are_more_threads_than_heads(
    threads: int, causal: bool, reach: int, compiled: None
) -> None:
    """A single head is split between threads: states of stretches, a short scan, then outputs; T < S as well."""
    before = torch.get_num_threads()
    q = torch.randn(1, 1, reach, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(1, 1, 3000, w, dtype=torch.float64, requires_grad=True) for w in (8, 5))
    want = attention_reference(q, k, v, causal=causal)
    do = torch.randn_like(want)
    exact = [want, *torch.autograd.grad(want, (q, k, v), do)]
    try:
        torch.set_num_threads(threads)
        o, state = cosformer_attention(q, k, v, causal=causal, horizon=3000, return_state=True, backend="cpu")
        got = [o, *torch.autograd.grad(o, (q, k, v), do)]
        torch.set_num_threads(1)
        _, one = cosformer_attention(q, k, v, causal=causal, horizon=3000, return_state=True, backend="cpu")
    finally:
        torch.set_num_threads(before)
    for a, b in zip([*got, state.sums], [*exact, one.sums], strict=True):
        assert worst(a, b) <= 3000 * torch.finfo(torch.float64).eps * max(b.abs().max().item(), 1)


@pytest.mark.parametrize("width", [1, 5, 16, 19])
@pytest.mark.parametrize("name", ["elu1", "silu"])
def test_exponentials_of_feature_maps_are_right_in_the_last_places(name: str, width: int, backend: str) -> None:
    """Unnormalised, one token, φ(q) known: o = φ(q)·φ(k), whatever place of a vector a number has."""
    special = torch.tensor([0.0, -0.0, -87.3, -87.5, -103.9, 88.0, 100.0, 1e-30])
    x = torch.cat([torch.linspace(-110, 90, 20_001), special])
    at = (torch.arange(len(x)) % width).reshape(-1, 1, 1, 1)
    k = torch.full((len(x), 1, 1, width), 0.3).scatter(3, at, x.reshape(-1, 1, 1, 1)).requires_grad_()
    q = torch.full_like(k, -200.0).scatter(3, at, 1.0)  # φ(−200) is 0
    options = {"causal": True, "feature_map": name, "normalize": False, "horizon": 9, "backend": backend}
    o = cosformer_attention(q, k, torch.ones(len(x), 1, 1, 1), **options)
    (slope,) = torch.autograd.grad(o.sum(), k)
    wide = x.double().requires_grad_()
    phi = FEATURE_MAPS[name]
    scale = phi(torch.ones(1, dtype=torch.float64))
    (steep,) = torch.autograd.grad((scale * phi(wide)).sum(), wide)
    for ours, true in ((o.detach(), (scale * phi(wide)).detach()), (slope.gather(3, at), steep)):
        error = (ours.flatten().double() - true).abs()
        # φ twice, products, sums: 8 roundings of a number or what it is made from: 1 (F.elu(x) + 1), x (silu's slope)
        assert (error <= 8 * 2**-24 * torch.maximum(true.abs(), x.abs().double()).clamp(min=1)).all()
