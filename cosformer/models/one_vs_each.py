"""A bound on softmax as a training loss (Titsias 2016): p(k) ≥ Π_{m≠k} σ(f_k − f_m), and its sum may be sampled."""

import torch
import torch.nn.functional as F
from torch import Tensor


def one_vs_each(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ_{m≠k} log(1 + exp(f_m − f_k)) [...] for logits f [..., N] and labels k [...]: at least −log softmax(f)_k.

    With N = 2 the two are equal.
    """
    _check_labels(labels, logits.shape[:-1], logits.shape[-1], None)
    return _exact(logits, labels.long())


def _exact(logits: Tensor, labels: Tensor) -> Tensor:
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
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden has shape {tuple(hidden.shape)} and weight {tuple(weight.shape)}: they are [..., E] and [N, E], "
            "an output embedding of each of N words"
        )
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, (int, torch.SymInt))):
        raise TypeError(f"samples={samples!r} is a {type(samples).__name__}: it counts words; pass an int or None")
    if samples is not None and samples < 1:
        raise ValueError(f"samples={samples}: it counts words to compare with; use at least 1, or None for all")
    _check_labels(labels, hidden.shape[:-1], weight.shape[0], ignore_index)
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1).to(hidden.device, torch.long)
    wanted = labels != ignore_index
    words_wanted = labels.masked_fill(~wanted, 0)  # any word; it does not count. Shapes stay, for compilers
    if samples is None:
        losses = _exact(F.linear(hidden, weight).float(), words_wanted)
    else:
        words = torch.randint(weight.shape[0], (samples,), device=weight.device, generator=generator)
        own = (hidden * weight[words_wanted]).sum(-1, keepdim=True).float()  # [n, 1]
        others = F.softplus(F.linear(hidden, weight[words]).float() - own)  # [n, samples]
        others = others.masked_fill(words == words_wanted[:, None], 0.0)
        losses = others.sum(-1) * (weight.shape[0] / samples)
    count = wanted.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return losses.masked_fill(~wanted, 0.0).sum() / torch.as_tensor(count, device=losses.device)


def _check_labels(labels: Tensor, shape: torch.Size, words: int, ignored: int | None) -> None:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"labels are {labels.dtype}: a label is the number of a word; use labels.long()")
    if labels.shape != shape and not (labels.dim() == 1 and labels.numel() == shape.numel()):
        raise ValueError(f"labels have shape {tuple(labels.shape)} for {tuple(shape)} tokens: one label for each")
    labels = labels.long()
    wrong = (labels < 0) | (labels >= words)
    wrong = wrong if ignored is None else wrong & (labels != ignored)
    if torch.compiler.is_compiling() or labels.is_cuda:  # to read it would wait for the device
        torch.ops.aten._assert_async.msg(~wrong.any(), "a label of one_vs_each is the number of no word")
    elif labels.device.type == "cpu" and wrong.any():
        also = "" if ignored is None else f", or {ignored} for tokens that do not count"
        raise ValueError(f"label {int(labels[wrong][0])} for {words} words: labels are from 0 to {words - 1}{also}")
