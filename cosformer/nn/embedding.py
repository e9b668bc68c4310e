"""A table of few embeddings, whose gradient is a product.

Added up token by token, the gradients of the most frequent tokens wait for one another: in pictures that are mostly
dark this was the longest kernel of a step on a GPU. A product with the ids as ones and zeros adds the same numbers,
always in the same order.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOST_ROWS = 512
"""Of a table: with more, ones and zeros for each row take longer than waiting does."""


class Embedding(nn.Embedding):
    """nn.Embedding; trained on CUDA, the gradient of a small table is a product, under autocast in its dtype."""

    def forward(self, input: Tensor) -> Tensor:
        trained = self.training and torch.is_grad_enabled()
        if self._does_more() or not (trained and self.weight.is_cuda and self.num_embeddings <= MOST_ROWS):
            return super().forward(input)
        low = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else self.weight.dtype
        return looked_up(self.weight, input, low)

    def _does_more(self) -> bool:
        """Than look up: that stays torch's own."""
        return not (self.padding_idx is None and self.max_norm is None and not self.scale_grad_by_freq)


def looked_up(table: Tensor, ids: Tensor, low: torch.dtype) -> Tensor:
    """table[ids], [..., E] for ids [...]; gradients of the table are multiplied in the dtype `low`."""
    return _Lookup.apply(table, ids, low)  # pyright: ignore[reportReturnType]


class _Lookup(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor, ids: Tensor, low: torch.dtype) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return F.embedding(ids, table)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        table, ids, ctx.low = inputs
        ctx.rows, ctx.dtype = table.shape[0], table.dtype
        ctx.save_for_backward(ids)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,) = ctx.saved_tensors
        ids = ids.flatten(0, -2) if ids.dim() > 1 else ids.reshape(1, -1)  # [B, T]
        grad = grad.reshape(*ids.shape, grad.shape[-1]).to(ctx.low)  # [B, T, E]
        ones = (ids[:, None] == torch.arange(ctx.rows, device=ids.device)[:, None]).to(ctx.low)  # [B, rows, T]
        # a product for each sequence: one of few numbers, each a sum over all tokens, would leave most of a GPU idle
        return (ones @ grad).sum(0, dtype=ctx.dtype), None, None
