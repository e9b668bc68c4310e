"""The one-vs-each bound holds, is tight for two, and sampling has it as its mean."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.rivals import one_vs_each, one_vs_each_loss


def some(words: int) -> tuple[Tensor, Tensor]:
    return torch.randn(500, words, dtype=torch.float64) * 3, torch.randint(words, (500,))


@pytest.mark.parametrize("words", [3, 50])
def test_the_bound_holds(words: int) -> None:
    logits, labels = some(words)
    exact = F.cross_entropy(logits, labels, reduction="none")
    bound = one_vs_each(logits, labels)
    assert (bound >= exact).all()
    assert (bound - exact).max() > 0.1


def test_it_is_softmax_for_two_words() -> None:
    logits, labels = some(2)
    exact = F.cross_entropy(logits, labels, reduction="none")
    assert (one_vs_each(logits, labels) - exact).abs().max() < 1e-13


def test_it_is_the_product_of_its_definition() -> None:
    logits, labels = torch.randn(6, dtype=torch.float64), torch.tensor(4)
    product = torch.stack([torch.sigmoid(logits[4] - logits[m]) for m in range(6) if m != 4]).prod()
    assert abs(torch.exp(-one_vs_each(logits, labels)) - product) < 1e-14


def test_sampling_is_unbiased_in_loss_and_gradient() -> None:
    hidden, labels = torch.randn(2, 10, 8, requires_grad=True), torch.randint(30, (2, 10))
    labels[0, :3] = -100
    weight = torch.randn(30, 8)
    exact = one_vs_each_loss(hidden, weight, labels)
    (wanted,) = torch.autograd.grad(exact, hidden)
    draws, generator = 1_500, torch.Generator().manual_seed(0)
    losses, grads = [], []
    for _ in range(draws):
        loss = one_vs_each_loss(hidden, weight, labels, samples=8, generator=generator)
        losses.append(loss.detach())
        grads.append(torch.autograd.grad(loss, hidden)[0])
    for found, true in ((torch.stack(losses), exact.detach()), (torch.stack(grads), wanted)):
        deviation = found.std(0) / draws**0.5 + 1e-6  # ignored tokens have no gradient at all
        assert ((found.mean(0) - true).abs() / deviation).max() < 5  # of 161 standard errors
    assert torch.stack(losses).std() > 0


def test_it_trains_an_output_layer() -> None:
    hidden, labels = torch.randn(64, 16), torch.arange(64) % 20
    weight = torch.zeros(20, 16, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        one_vs_each_loss(hidden, weight, labels, samples=10).backward()
        optimizer.step()
    assert F.cross_entropy(hidden @ weight.T, labels) < 2.0  # log 20 = 3.0 at the start


def test_no_samples_no_loss() -> None:
    with pytest.raises(ValueError, match="samples=0"):
        one_vs_each_loss(torch.randn(1, 4), torch.randn(5, 4), torch.tensor([1]), samples=0)
