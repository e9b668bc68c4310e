"""Small models whose mistakes show: weights at std 0.3, biases too, and padding made of an ordinary token."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cosformer.models import CosformerConfig

VOCAB, HORIZON, PAD = 61, 96, 7
ATTENTIONS: dict[str, str | list[str]] = {
    "cosformer": "cosformer",
    "softmax": "softmax",
    "hybrid": ["cosformer", "softmax"],
    "hybrid-softmax-first": ["softmax", "cosformer"],
}
POSITIONS = ("none", "learned", "sinusoidal", "rotary")


def small_config(**options: Any) -> CosformerConfig:
    small = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "horizon": HORIZON, "initializer_range": 0.3,
        "pad_token_id": PAD, "tie_word_embeddings": False,
    }  # fmt: skip
    return CosformerConfig(**small | options)


def small_model(cls: type, seed: int = 1, **options: Any) -> Any:
    """In eval mode, with biases and norm weights drawn too. Of the first seeds, 1 writes the most varied tokens."""
    torch.manual_seed(seed)
    model = cls(small_config(**options)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.3)
    return model


def tokens(*shape: int, seed: int = 1) -> Tensor:
    """Any token may occur, the one used for padding too."""
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """ids [B, T] and mask of rows [t] of unequal lengths."""
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), PAD)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        here = slice(longest - len(row), None) if side == "left" else slice(0, len(row))
        ids[i, here], mask[i, here] = row, 1
    return ids, mask


@contextmanager
def swapped(target: Any, name: str, value: Any) -> Iterator[None]:
    """`target.name` is `value` for a while: a broken part, to see a test fail."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)
