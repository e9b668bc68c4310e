"""Embeddings whose gradient is a product: the same numbers as torch's own, also twice and per example."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from cosformer.nn.embedding import MOST_ROWS, Embedding, looked_up

ROWS, WIDTH = 11, 6
F64 = torch.float64


def drawn(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """table, ids with much of a kind and rows that never come, gradients."""
    ids = torch.randint(0, ROWS - 2, shape)
    ids[torch.rand(shape) < 0.5] = 3
    return torch.randn(ROWS, WIDTH, dtype=F64, requires_grad=True), ids, torch.randn(*shape, WIDTH, dtype=F64)


@pytest.mark.parametrize("shape", [(7,), (3, 50), (2, 3, 4), (2, 0), ()], ids=str)
def test_it_is_torchs_own(shape: tuple[int, ...]) -> None:
    table, ids, grad = drawn(*shape)
    got, want = looked_up(table, ids, F64), F.embedding(ids, table)
    assert torch.equal(got, want)
    assert_close(*(torch.autograd.grad(y, table, grad)[0] for y in (got, want)), rtol=0, atol=1e-13)


def test_in_bf16_the_sum_of_each_sequence_is_rounded_once() -> None:
    table, ids, grad = drawn(4, 100)
    single = table.detach().float().requires_grad_()
    (got,) = torch.autograd.grad(looked_up(single, ids, torch.bfloat16), single, grad.float())
    sums = torch.zeros(4, ROWS, WIDTH, dtype=F64)
    for one, its_ids, its_grad in zip(sums, ids, grad.float().bfloat16().double(), strict=True):
        one.index_add_(0, its_ids, its_grad)
    assert got.dtype == torch.float32
    assert ((got.double() - sums.sum(0)).abs() <= 2.0**-8 * sums.abs().sum(0) + 1e-5).all()  # and fp32's own
    assert (got.double() - sums.sum(0)).abs().max() > 1e-4  # which fp32 would not show


def test_second_derivatives() -> None:
    table, ids, _ = drawn(2, 5)
    assert torch.autograd.gradgradcheck(lambda x: looked_up(x, ids, F64).sin(), table)


def test_gradients_of_each_example() -> None:
    table, ids, grad = drawn(4, 9)

    def loss(table: Tensor, ids: Tensor, grad: Tensor) -> Tensor:
        return (looked_up(table, ids, F64) * grad).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(table, ids, grad)
    for i in range(4):
        assert_close(each[i], torch.func.grad(loss)(table, ids[i], grad[i]))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does so itself
def test_it_compiles_whole_for_all_lengths() -> None:
    compiled = torch.compile(looked_up, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 8, 13):
        table, ids, grad = drawn(2, length)
        got, want = compiled(table, ids, F64), F.embedding(ids, table)
        assert_close(*(torch.autograd.grad(y, table, grad)[0] for y in (got, want)), rtol=0, atol=1e-13)


def test_on_a_cpu_and_with_options_it_is_nn_embedding() -> None:
    table, ids, _ = drawn(3, 4)
    layer = Embedding(ROWS, WIDTH, dtype=F64)
    layer.load_state_dict({"weight": table})
    assert isinstance(layer, nn.Embedding)
    assert "Lookup" not in type(layer(ids).grad_fn).__name__
    padded = Embedding(ROWS, WIDTH, padding_idx=3)
    padded(ids).sum().backward()
    assert padded.weight.grad is not None
    assert not padded.weight.grad[3].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_is_a_product_in_the_same_order_every_time() -> None:
    ids = torch.randint(0, 4, (64, 1024), device="cuda")
    for rows, by_product in ((MOST_ROWS, True), (MOST_ROWS + 1, False)):
        layer = Embedding(rows, 64, device="cuda")
        grad = torch.randn(64, 1024, 64, device="cuda")
        y = layer(ids)
        assert ("Lookup" in type(y.grad_fn).__name__) is by_product
        got, again = (torch.autograd.grad(y, layer.weight, grad, retain_graph=True)[0] for _ in range(2))
        want, size = (
            torch.zeros(rows, 64, dtype=F64, device="cuda").index_add_(0, ids.flatten(), x.double().flatten(0, 1))
            for x in (grad, grad.abs())
        )
        # n numbers in any order: n roundings, each 2^-24 of a sum no larger than `size`, which average out
        assert ((got.double() - want).abs() <= ids.numel() ** 0.5 * 2.0**-24 * size).all()
        assert torch.equal(got, again) or not by_product
        with torch.autocast("cuda", torch.bfloat16):
            (low,) = torch.autograd.grad(layer(ids), layer.weight, grad)
        assert low.dtype == torch.float32
        assert (low.double() - want).norm() <= 2.0**-7 * want.norm()
