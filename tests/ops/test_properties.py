"""Random shapes, options and values: what must hold for all of them."""

import torch
from comparing import assert_rounding_only
from definition import Case, actual, expected, sizes, with_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from cosformer import attention_weights, cosformer_attention

SLOW = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    group, heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    causal = draw(st.booleans())
    s = draw(st.integers(1, 140))
    return Case(
        B=draw(st.integers(1, 2)), H=group * heads, Hkv=heads, S=s, T=draw(st.integers(1, s if causal else 140)),
        K=draw(st.integers(1, 40)), V=draw(st.integers(1, 40)), past=draw(st.sampled_from([0, 1, 50])), causal=causal,
        masked=draw(st.booleans()), feature_map=draw(st.sampled_from(["relu", "elu1"])), normalize=draw(st.booleans()),
        slack=draw(st.sampled_from([0, 1, 1000])), seed=draw(st.integers(0, 99)),
    )  # fmt: skip


@SLOW
@given(case=cases(), backend=st.sampled_from(["auto", "torch"]))
def test_any_case_is_exact(case: Case, backend: str) -> None:
    got = with_gradients(lambda q, k, v: actual(case, q, k, v, backend), case)
    exact = with_gradients(lambda q, k, v: expected(case, q, k, v), case)
    # a key at distance d from its only query keeps cos θd of two terms near 1: rounding grows by 1/cos θd <= 2M/π
    terms = case.T + case.S + case.past + case.K + case.V
    amplified = 1 + (2 * case.horizon if case.slack < 1000 else 2)
    for name, size in sizes(case).items():
        assert_rounding_only(got[name], exact[name], terms=terms * amplified, size=size, label=name)


@SLOW
@given(case=cases())
def test_outputs_stay_within_the_values(case: Case) -> None:
    """With relu and a denominator each output is an average of values: never outside their range."""
    x = case.inputs()
    q, k, v = x["q"], x["k"][:, :, case.past :], x["v"][:, :, case.past :]
    o = cosformer_attention(q, k, v, causal=case.causal)
    low, high = (f.repeat_interleave(case.H // case.Hkv, 1) for f in (v.amin(2, keepdim=True), v.amax(2, keepdim=True)))
    slack = 1e-12 * v.abs().max()
    assert (o >= low.clamp(max=0) - slack).all()
    assert (o <= high.clamp(min=0) + slack).all()


@SLOW
@given(case=cases())
def test_weights_are_a_distribution(case: Case) -> None:
    x = case.inputs()
    w = attention_weights(x["q"], x["k"][:, :, case.past :], causal=case.causal)
    assert (w >= 0).all()
    rows = w.sum(-1)
    assert ((rows - 1).abs().lt(1e-9) | rows.eq(0)).all()


@SLOW
@given(n=st.integers(2, 80), shift=st.integers(1, 30), seed=st.integers(0, 9))
def test_only_distances_matter(n: int, shift: int, seed: int) -> None:
    """Shifting a sequence to later positions (behind masked keys) changes nothing."""
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, 1, n, 4, dtype=torch.float64) for _ in range(3))
    plain = cosformer_attention(q, k, v, causal=True, horizon=200)
    later = [torch.cat([torch.randn(1, 1, shift, 4, dtype=torch.float64), x], 2) for x in (q, k, v)]
    mask = torch.arange(n + shift)[None] >= shift
    moved = cosformer_attention(*later, causal=True, horizon=200, key_mask=mask)[:, :, shift:]
    torch.testing.assert_close(moved, plain, rtol=0, atol=1e-12)
