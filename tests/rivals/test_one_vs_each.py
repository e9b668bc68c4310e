"""The one-vs-each bound holds, is tight for two, and sampling has it as its mean."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.models import CosformerConfig, CosformerForCausalLM
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


SOME = torch.randn(3, 4), torch.randn(5, 4)
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "past the last": (lambda: one_vs_each_loss(*SOME, torch.tensor([0, 5, 1])), "label 5 for 5 words"),
    "sampled": (lambda: one_vs_each_loss(*SOME, torch.tensor([0, -1, 1]), samples=2), "label -1 for 5 words"),
    "ignored by another": (
        lambda: one_vs_each_loss(*SOME, torch.tensor([0, -100, 1]), ignore_index=-1),
        "from 0 to 4, or -1 for tokens that do not count",
    ),
    "too few": (lambda: one_vs_each_loss(*SOME, torch.tensor([0, 1])), "labels have shape (2,) for (3,) tokens"),
    "transposed": (lambda: one_vs_each_loss(SOME[0], SOME[1].mT, torch.tensor([0, 1, 2])), "they are [..., E]"),
    "of logits": (lambda: one_vs_each(SOME[0], torch.tensor([0, 4, 1])), "label 4 for 4 words"),
    "one for each row": (lambda: one_vs_each(SOME[0], torch.tensor([[0, 1, 2]])), "labels have shape (1, 3)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs(case: str) -> None:
    call, words = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_labels_and_counts_are_whole_numbers() -> None:
    with pytest.raises(TypeError, match=r"labels are torch.float32"):
        one_vs_each_loss(*SOME, torch.tensor([0.0, 1.0, 2.0]))
    with pytest.raises(TypeError, match=r"samples=2.0 is a float"):
        one_vs_each_loss(*SOME, torch.tensor([0, 1, 2]), samples=2.0)  # pyright: ignore[reportArgumentType]
    short = torch.tensor([0, 1, 2], dtype=torch.int32)
    assert torch.equal(one_vs_each_loss(*SOME, short), one_vs_each_loss(*SOME, short.long()))


def test_labels_may_be_flat_and_narrow() -> None:
    hidden, weight = torch.randn(2, 5, 4), torch.randn(300, 4)
    labels = torch.randint(0, 128, (2, 5))
    wanted = one_vs_each_loss(hidden, weight, labels)
    assert torch.equal(one_vs_each_loss(hidden, weight, labels.flatten()), wanted)
    assert torch.equal(one_vs_each_loss(hidden, weight, labels.to(torch.int8)), wanted)


def test_compiled_it_still_refuses_labels_of_no_word() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(one_vs_each_loss, fullgraph=True, backend="eager")
    labels = torch.tensor([0, -100, 4])
    assert torch.equal(compiled(*SOME, labels), one_vs_each_loss(*SOME, labels))
    with pytest.raises(RuntimeError, match="a label of one_vs_each is the number of no word"):
        compiled(*SOME, labels + 1)


def causal(**options: object) -> CosformerForCausalLM:
    torch.manual_seed(0)
    small = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "horizon": 16}
    return CosformerForCausalLM(CosformerConfig(**small, loss="one_vs_each", **options))


def test_a_model_trains_by_the_bound_and_is_judged_by_softmax() -> None:
    model, ids = causal(), torch.randint(0, 40, (2, 9))
    labels = ids.clone()
    labels[1, 4:] = -100
    out = model.train()(ids, labels=labels)
    assert out.logits is None
    hidden = model.model(ids).last_hidden_state
    wanted = one_vs_each_loss(hidden[:, :-1], model.lm_head.weight, labels[:, 1:])
    assert torch.allclose(out.loss, wanted, rtol=1e-6)
    counted = model(ids, labels=labels, num_items_in_batch=torch.tensor(22.0)).loss
    assert torch.allclose(counted, wanted * 11 / 22, rtol=1e-6)  # 8 targets and 3
    judged = model.eval()(ids, labels=labels)
    exact = F.cross_entropy(judged.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert torch.allclose(judged.loss, exact, rtol=1e-6)
    assert model.train()(ids).logits.shape == (2, 9, 40)  # without labels there is nothing else to give


def test_a_model_refuses_a_label_of_no_word() -> None:
    """Sampled, −1 would be taken for the last word."""
    ids = torch.randint(0, 40, (2, 9))
    with pytest.raises(ValueError, match="label -1 for 40 words"):
        causal(loss_samples=10).train()(ids, labels=torch.full_like(ids, -1))


def test_a_model_learns_by_samples_of_it() -> None:
    model, ids = causal(loss_samples=10).train(), torch.randint(0, 40, (4, 12))
    before = float(model.eval()(ids, labels=ids).loss.detach())
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    assert float(model.eval()(ids, labels=ids).loss.detach()) < before - 1  # it guessed all 40 words alike


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "ove"}, "use one of softmax, one_vs_each"),
        ({"loss": "softmax", "loss_samples": 3}, "of one_vs_each alone"),
        ({"loss": "one_vs_each", "loss_samples": -1}, "0 for all"),
        ({"loss": "one_vs_each", "causal": False}, "for causal language models"),
        ({"loss": "one_vs_each", "is_encoder_decoder": True}, "for causal language models"),
        ({"loss": "one_vs_each", "label_smoothing": 0.1}, "the bound has none"),
    ],
)
def test_what_a_config_refuses(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CosformerConfig(**options)
