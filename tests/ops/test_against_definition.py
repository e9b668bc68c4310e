"""Outputs and gradients of every mode against the float64 definition."""

from dataclasses import replace

import pytest
import torch
from comparing import assert_as_good_as_eager, assert_rounding_only
from definition import Case, actual, eager, expected, sizes, with_gradients

from cosformer import cosformer_attention

pytestmark = pytest.mark.usefixtures("_poisoned")

SHAPES = [
    Case(T=1, S=1, K=8, V=8),
    Case(T=31, S=31, K=5, V=3),
    Case(T=32, S=32, K=16, V=16, B=1, H=1, Hkv=1),
    Case(T=33, S=33, K=17, V=15),
    Case(T=64, S=64, K=64, V=64, B=1),
    Case(T=65, S=65, K=24, V=40),
    Case(T=130, S=130, K=40, V=130, B=1),
    Case(T=1100, S=1100, K=9, V=7, B=1),  # more than one frame of 1,024
    Case(T=37, S=90, K=12, V=20),
    Case(T=1, S=70, K=12, V=20),
    Case(T=50, S=1300, K=6, V=10, B=1, H=1, Hkv=1),
    Case(T=45, S=45, H=4, Hkv=2),
    Case(T=45, S=77, H=6, Hkv=1, B=1),
    Case(T=70, S=70, masked=True),
    Case(T=33, S=99, masked=True, H=4, Hkv=2),
    Case(T=40, S=40, past=50),
    Case(T=20, S=35, past=61, masked=True, H=2, Hkv=1),
    Case(T=45, S=45, slack=0),
    Case(T=45, S=45, slack=1_000_000),
]
CROSS = [
    Case(T=90, S=37, causal=False),
    Case(T=70, S=1, causal=False),
    Case(T=1200, S=40, K=6, V=10, B=1, causal=False),
]
MODES = [replace(c, causal=causal) for c in SHAPES for causal in (True, False)] + CROSS
MAPS = [
    Case(T=45, S=61, H=2, Hkv=1, masked=True, causal=causal, feature_map=name, normalize=normalize)
    for name in ("relu", "identity", "leaky_relu", "elu1", "silu") for causal in (True, False)
    for normalize in (True, False)
]  # fmt: skip
assert len(MODES) > 0 < len(MAPS)


@pytest.mark.parametrize("case", MODES + MAPS, ids=str)
def test_output_and_gradients_are_exact_in_float64(case: Case, backend: str) -> None:
    got = with_gradients(lambda q, k, v: actual(case, q, k, v, backend), case)
    exact = with_gradients(lambda q, k, v: expected(case, q, k, v), case)
    terms = case.T + case.S + case.past + case.K + case.V
    for name, size in sizes(case).items():
        assert_rounding_only(got[name], exact[name], terms=terms, size=size, label=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", [c for c in MODES if c.causal or not c.past] + MAPS, ids=str)
def test_output_and_gradients_are_as_good_as_eager(case: Case, dtype: torch.dtype, backend: str) -> None:
    case = replace(case, dtype=dtype)
    got = with_gradients(lambda q, k, v: actual(case, q, k, v, backend), case)
    same = with_gradients(lambda q, k, v: eager(case, q, k, v), case)
    exact = with_gradients(lambda q, k, v: expected(case, q, k, v), case)
    for name, size in sizes(case).items():
        factor = 2 if name == "o" else 3
        assert_as_good_as_eager(got[name], same[name], exact[name], size=size, factor=factor, label=name)


@pytest.mark.parametrize("case", MODES + MAPS, ids=str)
def test_reference_is_the_definition(case: Case) -> None:
    if not case.causal and case.past:
        pytest.skip("the quadratic form has no state; a past of full attention needs one")
    got = with_gradients(lambda q, k, v: eager(case, q, k, v), case)
    exact = with_gradients(lambda q, k, v: expected(case, q, k, v), case)
    terms = case.T + case.S + case.past + case.K + case.V
    for name, size in sizes(case).items():
        assert_rounding_only(got[name], exact[name], terms=terms, size=size, label=name)


def test_horizon_defaults_to_the_longer_of_queries_and_keys(backend: str) -> None:
    case = Case(T=20, S=50, causal=False, slack=0)
    x = case.inputs()
    o = cosformer_attention(x["q"], x["k"], x["v"], backend=backend)
    assert_rounding_only(o, expected(case, x["q"], x["k"], x["v"]), terms=134, size=sizes(case)["o"])
