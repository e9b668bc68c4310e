"""Losses of the heads: cross entropy in fp32, smoothed in training if the config says so."""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

IGNORED = -100


def token_loss(
    logits: Tensor, labels: Tensor, *, smoothing: float = 0.0, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Mean over labels other than −100 [...] of logits [..., N]; over num_items_in_batch where Trainer counts them."""
    if logits.dim() > 2 and labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)} for logits of {tuple(logits.shape)}: a label for each token is "
            f"needed, {IGNORED} where there is none"
        )
    logits, labels = logits.flatten(0, -2).float(), labels.flatten().to(logits.device)
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")
    if num_items_in_batch is None:
        return total / (labels != IGNORED).sum().clamp(min=1)  # nothing to predict: 0, not NaN
    return total / torch.as_tensor(num_items_in_batch, device=total.device)


def next_token_labels(labels: Tensor, offsets: Tensor | None) -> Tensor:
    """[B, T]: what each token is to predict. The last of a sequence predicts nothing, packed or not."""
    shifted = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if offsets is not None:
        shifted[:, (offsets[1:] - 1).to(labels.device)] = IGNORED
    return shifted


def class_loss(
    logits: Tensor, labels: Tensor, config: PreTrainedConfig, *, smoothing: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:  # fmt: skip
    """By config.problem_type, or what labels suggest: regression, one class of several, or several at once."""
    labels, problem = labels.to(logits.device), config.problem_type
    if problem is None:
        whole = not labels.is_floating_point()
        problem = "single_label_classification" if whole else "multi_label_classification"
        problem = "regression" if config.num_labels == 1 else problem
    if problem == "regression":
        return F.mse_loss(logits.float().reshape(labels.shape), labels.float())
    if problem == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
    return token_loss(logits, labels, smoothing=smoothing, num_items_in_batch=num_items_in_batch)
