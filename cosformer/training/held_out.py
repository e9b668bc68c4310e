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
from cosformer.training.batches import ByEpoch
from cosformer.training.data import RunData
from cosformer.training.recipe_fields import BadRecipe


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, not compiled: other shapes would compile anew. All is put back."""
    training, compiled = model.training, uncompile(model)
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call
        model.train(training)


def uncompile(model: nn.Module) -> list[tuple[nn.Module, Any]]:
    """Calls go the ordinary way from here on; what nn.Module.compile had put in their place."""
    found = [(m, m._compiled_call_impl) for m in model.modules() if m._compiled_call_impl is not None]
    for module, _ in found:
        module._compiled_call_impl = None
    return found


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
    total: Callable[[Tensor], Tensor] = lambda x: x, dataset: Any = None, length: int = 0,
    done: Callable[[int, int], None] = lambda _, __: None,
) -> dict[str, float]:  # fmt: skip
    """What the task reports: perplexity, and bits per byte of text that is spelt; or accuracy with its interval.

    Each of `world` processes takes every world-th batch; `total` adds tensors over them. dataset: the split read in
    another way than in training, up to `length` tokens at once. done: told how many batches there are and how many
    were read.
    """
    dataset = data.dataset(split) if dataset is None else dataset
    read = ByEpoch(dataset, data.collator(length)).__getitems__  # as in training: a batch at once, where it can be
    chosen = chosen_batches(len(dataset), batch, batches, data.recipe.seed)
    classes = data.classes if data.recipe.task == "classify" else ()
    # sums stay on the device: the next batch is read while it computes
    said = torch.zeros(max(1, len(classes)), max(1, len(classes)), dtype=torch.float64, device=device)
    nats, tokens = torch.zeros(1, dtype=torch.float64, device=device), 0
    one = torch.ones((), device=device)
    extra: dict[str, Any] = {"use_cache": False} if data.recipe.task in ("lm", "translate") else {}
    with at_rest(model):
        for first in range(0, len(chosen), world):
            counts = first + rank < len(chosen)  # else the first once more: sharded models need every process
            inputs = read([(0, i) for i in chosen[first + rank if counts else first]])
            labels = _labels(inputs)
            with autocast():
                out = model(**on_device(inputs, device), num_items_in_batch=one, **extra)  # over one: the sum
            done(min(first + world, len(chosen)), len(chosen))
            if not counts:
                continue
            nats += out.loss.double()
            tokens += int((labels != IGNORED).sum())
            if classes:
                said.index_put_((labels.to(device), out.logits.argmax(-1)), said.new_ones(()), accumulate=True)
    sums = total(torch.cat([nats, nats.new_tensor([tokens]), said.flatten()])).cpu()
    return _report(data, split, float(sums[0]), round(float(sums[1])), sums[2:].reshape(said.shape))


def on_device(inputs: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Offsets of packed sequences stay: they are read on the CPU."""
    return {k: v if k == "cu_seqlens" else v.to(device, non_blocking=True) for k, v in inputs.items()}


def check_targets(data: RunData, split: str, *, batch: int, batches: int) -> None:
    """Before training: where masked tokens are few, an evaluation of a few sequences may hold none."""
    dataset = data.dataset(split)
    read = ByEpoch(dataset, data.collator()).__getitems__
    for chosen in chosen_batches(len(dataset), batch, batches, data.recipe.seed):
        if bool((_labels(read([(0, i) for i in chosen])) != IGNORED).any()):
            return
    raise BadRecipe(_nothing(split))


def _labels(inputs: dict[str, Tensor]) -> Tensor:
    return inputs["shift_labels"] if "shift_labels" in inputs else inputs["labels"]


def _nothing(split: str) -> str:
    return (
        f"in what is read of the split {split!r} no token is to be predicted: there is no loss of nothing; read more "
        "of it (eval.batches, --batches; 0: all), hide more (data.mask_share), or give longer texts"
    )


def _report(data: RunData, split: str, nats: float, tokens: int, said: Tensor) -> dict[str, float]:
    if not tokens:
        raise ValueError(_nothing(split))
    loss = LossSum(nats=nats, tokens=tokens)
    what = "examples" if data.recipe.task == "classify" else "tokens"
    found: dict[str, float] = {"loss": nats / tokens, what: tokens}
    if data.recipe.task == "classify":
        return found | Confusion(data.classes, said.round().long().numpy()).report()
    if data.recipe.task == "lm":
        manifest = data.shards[split].manifest
        if manifest.spelt:  # of a part, by the bytes that a token of the split has on average
            found["bits_per_byte"] = nats / tokens / math.log(2) * manifest.tokens / manifest.bytes
        else:  # bits of <unk> are not those of the words it stands for
            found["unknown_share"] = manifest.unknown_share
    return found | {"perplexity": loss.perplexity}


def score(task: str, metrics: dict[str, float]) -> float:
    """Higher is better."""
    return metrics["accuracy"] if task == "classify" else -metrics["loss"]
