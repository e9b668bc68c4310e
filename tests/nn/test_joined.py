"""Layers of one input as one product: the same numbers, and only where nothing was hung on them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cosformer.nn.joined import joined


class Twice(nn.Module):
    def __init__(self, bias: bool, other: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8, bias=bias), other(6, 3, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        a, b = joined(x, (self.a, self.b))
        return a.sin().sum() + b.cos().sum()


class Adapted(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def graph_of(model: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    """What a compiled call gives, and how many products are in it."""
    torch._dynamo.reset()
    counts: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        counts.append(sum(node.target is torch._C._nn.linear for node in graph.graph.nodes))
        return graph

    out = torch.compile(model, backend=backend, fullgraph=True)(x)
    (count,) = counts
    return out, count


@pytest.mark.parametrize("bias", [True, False])
def test_one_product_gives_the_same(bias: bool) -> None:
    torch.manual_seed(0)
    model, x = Twice(bias).double(), torch.randn(4, 5, 6, dtype=torch.float64, requires_grad=True)
    want = torch.autograd.grad(model(x), [x, *model.parameters()])
    out, count = graph_of(model, x)
    assert count == 1
    torch.testing.assert_close(out, model(x), rtol=1e-14, atol=1e-14)
    for got, exact in zip(torch.autograd.grad(out, [x, *model.parameters()]), want, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-13, atol=1e-13)


def test_an_adapter_is_called() -> None:
    model, x = Twice(True, Adapted), torch.randn(2, 6)
    out, count = graph_of(model, x)
    assert count == 2
    torch.testing.assert_close(out, model(x))


def test_hooks_are_called() -> None:
    model, x = Twice(True), torch.randn(2, 6)
    plain = model(x)
    model.b.register_forward_hook(lambda *_: _[2] * 0 + 1)
    out, count = graph_of(model, x)
    assert count == 2
    torch.testing.assert_close(out, model(x))
    assert not torch.allclose(out, plain)


def test_without_gradients_weights_are_not_copied() -> None:
    with torch.no_grad():
        assert graph_of(Twice(True), torch.randn(2, 6))[1] == 2
