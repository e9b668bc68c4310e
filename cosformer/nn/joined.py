"""Several linear layers of one input as one product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def joined(x: Tensor, layers: Sequence[nn.Linear]) -> Sequence[Tensor]:
    """layer(x) of each layer. Where a training step is compiled, by one product of all weights side by side: x and its
    gradient then move once instead of once a layer, and a wide product keeps a GPU busier than narrow ones.

    For layers whose results go through something done number by number: the compiler then writes their gradients side
    by side in passing. Elsewhere, and in eager mode, they would have to be copied there.
    """
    if not (torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled() and all(map(_plain, layers))):
        return [layer(x) for layer in layers]
    weight = torch.cat([layer.weight for layer in layers])
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    made = F.linear(x, weight, torch.cat(biases) if biases else None)
    return made.split([layer.out_features for layer in layers], -1)


def _plain(layer: nn.Module) -> bool:
    """Nothing was hung on it: an adapter is a layer of another type, and hooks want to be called."""
    return type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)
