"""The yardstick itself: what is broken must look broken."""

import math
from dataclasses import replace

import pytest
import torch
from comparing import assert_as_good_as_eager, assert_rounding_only
from definition import Case, eager, expected, sizes, with_gradients


def broken(case: Case, q, k, v, fault: str):
    """The quadratic form with one thing wrong."""
    phi_q, phi_k = q.relu(), k.relu()
    theta = math.pi / (2 * case.horizon)
    a, b = (torch.arange(n, dtype=torch.float64).to(q) * theta for n in (case.T, case.S))
    w = (phi_q @ phi_k.mT) * torch.cos(a)[:, None] * torch.cos(b)
    if fault != "missing sine half":
        w = w + (phi_q @ phi_k.mT) * torch.sin(a)[:, None] * torch.sin(b)
    if fault == "one position off":
        w = (phi_q @ phi_k.mT) * torch.cos(a[:, None] - b + theta)
    if fault != "not causal":
        w = w.tril()
    z = w.sum(-1, keepdim=True)
    if fault == "denominator in bf16":
        z = z.bfloat16().to(z)
    return w @ v / z.clamp(min=1e-6)


@pytest.mark.parametrize("fault", ["missing sine half", "one position off", "not causal", "denominator in bf16"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_comparer_rejects(fault: str, dtype: torch.dtype) -> None:
    case = replace(Case(B=1, H=1, Hkv=1), dtype=dtype)
    got = with_gradients(lambda q, k, v: broken(case, q, k, v, fault), case)
    same = with_gradients(lambda q, k, v: eager(case, q, k, v), case)
    exact = with_gradients(lambda q, k, v: expected(case, q, k, v), case)
    size = sizes(case)["o"]
    with pytest.raises(AssertionError, match="error"):
        assert_as_good_as_eager(got["o"], same["o"], exact["o"], size=size, factor=2)
    if dtype == torch.float64:
        with pytest.raises(AssertionError, match="error"):
            assert_rounding_only(got["o"], exact["o"], terms=200, size=size)


def test_comparer_accepts_the_same_thing_unbroken() -> None:
    case = replace(Case(B=1, H=1, Hkv=1), dtype=torch.float32)
    got = with_gradients(lambda q, k, v: broken(case, q, k, v, "nothing"), case)
    same = with_gradients(lambda q, k, v: eager(case, q, k, v), case)
    exact = with_gradients(lambda q, k, v: expected(case, q, k, v), case)
    for name, size in sizes(case).items():
        assert_as_good_as_eager(got[name], same[name], exact[name], size=size, factor=3, label=name)


def test_comparer_rejects_nan() -> None:
    x = torch.ones(3)
    with pytest.raises(AssertionError, match="not finite"):
        assert_as_good_as_eager(x * torch.nan, x, x.double(), size=1, factor=2)
