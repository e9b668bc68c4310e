"""A bound on softmax as a training loss (Titsias 2016): p(k) ≥ Π_{m≠k} σ(f_k − f_m), and its sum may be sampled."""

import torch
import torch.nn.functional as F
from torch import Tensor


def one_vs_each(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ_{m≠k} log(1 + exp(f_m − f_k)) [...] for logits f [..., N] and labels k [...]: at least −log softmax(f)_k.

    With N = 2 the two are equal.
    """
    own = logits.gather(-1, labels[..., None])
    return F.softplus(logits - own).scatter(-1, labels[..., None], 0.0).sum(-1)


def one_vs_each_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, *, samples: int | None = None, ignore_index: int = -100,
    generator: torch.Generator | None = None, num_items_in_batch: Tensor | int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of `one_vs_each` over tokens, for hidden [..., E], output embeddings weight [N, E] and labels [...].

    samples: as many words, drawn evenly for the whole batch, stand for all N: the mean over draws is the exact loss,
    and neither time nor memory depends on N. None: exactly. num_items_in_batch: divided by instead of the tokens.
    """
    if samples is not None and samples < 1:
        raise ValueError(f"samples={samples}: it counts words to compare with; use at least 1, or None for all")
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1).to(hidden.device)
    wanted = labels != ignore_index
    words_wanted = labels.masked_fill(~wanted, 0)  # any word; it does not count. Shapes stay, for compilers
    if samples is None:
        losses = one_vs_each(F.linear(hidden, weight).float(), words_wanted)
    else:
        words = torch.randint(weight.shape[0], (samples,), device=weight.device, generator=generator)
        own = (hidden * weight[words_wanted]).sum(-1, keepdim=True).float()  # [n, 1]
        others = F.softplus(F.linear(hidden, weight[words]).float() - own)  # [n, samples]
        others = others.masked_fill(words == words_wanted[:, None], 0.0)
        losses = others.sum(-1) * (weight.shape[0] / samples)
    count = wanted.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return losses.masked_fill(~wanted, 0.0).sum() / torch.as_tensor(count, device=losses.device)
