"""The GPU kernels as the rivals call them: φ = identity, no turn, sums that may be tiny. Interpreted without a GPU."""

import pytest
import torch
from comparing import assert_as_good_as_eager
from torch import Tensor

from cosformer.ops.attention import attention_step
from cosformer.ops.state import AttentionState
from cosformer.rivals import feature_attention
from cosformer.rivals.feature_attention import EPS
from cosformer.rivals.states import NO_TURN

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # the interpreter itself
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def by_definition(phi_q: Tensor, phi_k: Tensor, v: Tensor, causal: bool) -> Tensor:
    w = phi_q @ phi_k.mT
    w = w.tril() if causal else w
    return w @ v / w.sum(-1, keepdim=True)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize(("width", "small"), [(16, 1.0), (12, 1e-10), (136, 1.0)])
def test_features_on_triton(causal: bool, width: int, small: float) -> None:
    """Products of 1e-20 are weights like any other: the operator's own eps of 1e-6 would make them nothing."""
    drawn = [torch.rand(1, 2, 150, n) * scale for n, scale in ((width, small), (width, small), (8, 1.0))]
    found = []
    for how in ("triton", "eager", "exact"):
        dtype = torch.float64 if how == "exact" else torch.float32
        x = [t.to(DEVICE if how == "triton" else "cpu", dtype).requires_grad_() for t in drawn]
        if how == "triton":
            o = feature_attention(*x, causal=causal, backend="triton")
        else:
            o = by_definition(*x, causal)
        gradients = torch.autograd.grad(o.square().sum(), x)
        found.append([y.cpu() for y in (o, *gradients)])
    sizes = (1.0, 1 / small, 1 / small, 1.0)
    for got, eager, exact, size, factor in zip(*found, sizes, (2, 3, 3, 3), strict=True):
        assert_as_good_as_eager(got, eager, exact, size=size, factor=factor)


def test_a_step_on_triton() -> None:
    phi_q, phi_k, v = (torch.rand(1, 2, 5, n, device=DEVICE) for n in (16, 16, 8))
    state = AttentionState(
        sums=torch.zeros(1, 2, 2, 16, 8, device=DEVICE), norm=torch.zeros(1, 2, 2, 16, device=DEVICE), length=0,
        horizon=NO_TURN,
    )  # fmt: skip
    got = [
        attention_step(
            *(x[:, :, t : t + 1] for x in (phi_q, phi_k, v)), state, feature_map="identity", eps=EPS, backend="triton"
        )
        for t in range(5)
    ]
    assert (torch.cat(got, 2) - by_definition(phi_q, phi_k, v, True)).abs().max() < 1e-5
    assert state.sums[:, :, 1].abs().max() < 1e-15  # the imaginary half
