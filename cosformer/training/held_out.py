"""Loss and accuracy on held-out data, as far as a running training needs it; `cosformer eval` does the rest."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.tasks import Confusion, LossSum
from cosformer.tasks.datasets.windows import IGNORED
from cosformer.tasks.keyed_random import Permutation
from cosformer.training.data import RunData


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, not compiled: other shapes would compile anew. All is put back."""
    training, compiled = model.training, model._compiled_call_impl
    model.eval()
    model._compiled_call_impl = None
    try:
        with torch.no_grad():
            yield
    finally:
        model._compiled_call_impl = compiled
        model.train(training)


def chosen_batches(length: int, batch: int, most: int, seed: int) -> list[list[int]]:
    """Indices of each batch: all in their order, or `most` batches spread over the split, always the same ones."""
    count = -(-length // batch)
    if not most or most >= count:
        return [list(range(i * batch, min((i + 1) * batch, length))) for i in range(count)]
    order = sorted(
        Permutation(length, "held-out", seed).slice(0, most * batch).tolist()
    )  # in order: fewer shards mapped
    return [order[i * batch : (i + 1) * batch] for i in range(most)]


def held_out(
    model: Any, data: RunData, split: str, *, batch: int, batches: int, device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]], rank: int = 0, world: int = 1,
    total: Callable[[Tensor], Tensor] = lambda x: x,
) -> dict[str, float]:  # fmt: skip
    """What the task reports: bits per byte and perplexity, perplexity, or accuracy with its interval.

    Each of `world` processes takes every world-th batch; `total` adds tensors over them.
    """
    dataset, collate = data.dataset(split), data.collator()
    chosen = chosen_batches(len(dataset), batch, batches, data.recipe.seed)
    classes = data.classes if data.recipe.task == "classify" else ()
    said = torch.zeros(max(1, len(classes)), max(1, len(classes)), dtype=torch.float64)
    nats = tokens = 0.0
    one = torch.ones((), device=device)
    extra: dict[str, Any] = {"use_cache": False} if data.recipe.task in ("lm", "translate") else {}
    with at_rest(model):
        for first in range(0, len(chosen), world):
            mine = first + rank
            counts = mine < len(
                chosen
            )  # sharded models need every process at every batch: one without repeats the first
            inputs = collate([dataset[i] for i in chosen[mine if counts else first]])
            inputs = {name: value.to(device) for name, value in inputs.items()}
            with autocast():
                out = model(**inputs, num_items_in_batch=one, **extra)  # over one: the sum
            if not counts:
                continue
            labels = inputs["shift_labels"] if "shift_labels" in inputs else inputs["labels"]
            nats += float(out.loss)
            tokens += float((labels != IGNORED).sum())
            if classes:
                for true, answer in zip(labels.tolist(), out.logits.argmax(-1).tolist(), strict=True):
                    said[true, answer] += 1
    sums = total(torch.cat([torch.tensor([nats, tokens], dtype=torch.float64), said.flatten()]).to(device)).cpu()
    return _report(data, split, float(sums[0]), round(float(sums[1])), sums[2:].reshape(said.shape))


def _report(data: RunData, split: str, nats: float, tokens: int, said: Tensor) -> dict[str, float]:
    loss = LossSum(nats=nats, tokens=tokens)
    what = "examples" if data.recipe.task == "classify" else "tokens"
    found: dict[str, float] = {"loss": nats / tokens, what: tokens}
    if data.recipe.task == "classify":
        return found | Confusion(data.classes, said.round().long().numpy()).report()
    if data.recipe.task == "lm":
        manifest = data.shards[split].manifest
        # of a part, by the bytes that a token of the split has on average
        found["bits_per_byte"] = nats / tokens / math.log(2) * manifest.tokens / manifest.bytes
    return found | {"perplexity": loss.perplexity}


def score(task: str, metrics: dict[str, float]) -> float:
    """Higher is better."""
    return metrics["accuracy"] if task == "classify" else -metrics["loss"]
