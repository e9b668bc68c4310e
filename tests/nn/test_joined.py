"""Layers of one input as one product: the same numbers, and only where nothing was hung on them."""

from collections.abc import Callable
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


def hang_on_forward(layer: nn.Linear) -> None:
    layer.register_forward_hook(lambda *given: given[2] * 0 + 1)


def hang_before_forward(layer: nn.Linear) -> None:
    layer.register_forward_pre_hook(lambda *given: (given[1][0] * 2,))


def replace_forward(layer: nn.Linear) -> None:  # as accelerate does to offload weights
    plain = layer.forward
    layer.forward = lambda input: plain(input) * 3  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [hang_on_forward, hang_before_forward, replace_forward])
def test_what_is_hung_on_a_layer_is_called(change: Callable[[nn.Linear], None]) -> None:
    model, x = Twice(True), torch.randn(2, 6)
    plain = model(x)
    change(model.b)
    out, count = graph_of(model, x)
    assert count == 2
    torch.testing.assert_close(out, model(x))
    assert not torch.allclose(out, plain)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo's own
@pytest.mark.parametrize("full", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_hooks_of_gradients_are_called(full: str) -> None:
    model, x = Twice(True), torch.randn(2, 6, requires_grad=True)
    getattr(model.b, full)(lambda _, *given: tuple(g * 0 for g in given[0]))
    want = torch.autograd.grad(model(x), x)
    torch._dynamo.reset()
    got = torch.autograd.grad(torch.compile(model, backend="eager")(x), x)
    torch.testing.assert_close(got, want)


def test_a_bias_here_and_none_there() -> None:
    model, x = Twice(True), torch.randn(2, 6)
    model.b.bias = None
    out, count = graph_of(model, x)
    assert count == 2
    torch.testing.assert_close(out, model(x))


def test_a_weight_of_another_type_is_left_alone() -> None:
    class Quantised(nn.Parameter): ...

    model, x = Twice(True), torch.randn(2, 6)
    model.b.weight = Quantised(model.b.weight.detach())
    assert graph_of(model, x)[1] == 2


def test_an_export_keeps_the_layers() -> None:
    found = torch.export.export(Twice(True), (torch.randn(2, 6),), strict=True).graph
    assert sum("linear" in str(node.target) for node in found.nodes) == 2


def test_without_gradients_weights_are_not_copied() -> None:
    with torch.no_grad():
        assert graph_of(Twice(True), torch.randn(2, 6))[1] == 2
