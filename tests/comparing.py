"""How close is close enough: derived from rounding, the same everywhere, and tested itself (test_comparing.py)."""

import torch
from torch import Tensor


def worst(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).abs().max().item()


def assert_rounding_only(got: Tensor, exact: Tensor, *, terms: int, size: float, label: str = "") -> None:
    """For float64, where no finer yardstick exists: one rounding for each of `terms` additions of things of `size`."""
    assert got.shape == exact.shape
    assert got.isfinite().all(), f"{label}: not finite"
    bound = terms * torch.finfo(torch.float64).eps * size
    assert worst(got, exact) <= bound, f"{label}: error {worst(got, exact):.2e} > {bound:.2e}"


def assert_as_good_as_eager(
    got: Tensor, eager: Tensor, exact: Tensor, *, size: float, factor: float, label: str = ""
) -> None:
    """err(got) <= factor · err(eager in the same dtype) + three roundings at `size`; both against float64.

    Three: numerator, denominator and quotient round once each, even where eager happens to be exact (a single key).
    """
    assert got.shape == exact.shape
    assert got.dtype == eager.dtype, f"{label}: {got.dtype} instead of {eager.dtype}"
    assert got.isfinite().all(), f"{label}: not finite"
    bound = factor * worst(eager, exact) + 3 * torch.finfo(got.dtype).eps * size
    assert worst(got, exact) <= bound, f"{label}: error {worst(got, exact):.2e} > {bound:.2e}"
