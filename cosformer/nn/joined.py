"""Several linear layers of one input as one product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.nn.compiling import compiled_to_run, unchanged

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def joined(x: Tensor, layers: Sequence[nn.Linear]) -> Sequence[Tensor]:
    """layer(x) of each layer. Where a training step is compiled, by one product of all weights side by side: x and its
    gradient then move once instead of once a layer, and a wide product keeps a GPU busier than narrow ones.

    For layers whose results go through something done number by number: the compiler then writes their gradients side
    by side in passing. Elsewhere, and in eager mode, they would have to be copied there.
    """
    if not can_join(layers):
        return [layer(x) for layer in layers]
    return product(x, layers).split([layer.out_features for layer in layers], -1)


def can_join(layers: Sequence[nn.Linear]) -> bool:
    """Whether `product` pays and is the same: in a compiled step of training, of layers nothing was hung on."""
    return compiled_to_run() and torch.is_grad_enabled() and _plain(layers)


def product(x: Tensor, layers: Sequence[nn.Linear]) -> Tensor:
    """What the layers make of x, side by side."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers]) if layers[0].bias is not None else None
    return F.linear(x, weight, bias)


def _plain(layers: Sequence[nn.Linear]) -> bool:
    """Nothing was hung on them: adapters are layers of another type, quantised weights tensors of another, offloading
    replaces `forward`, and hooks want to be called."""
    return len({layer.bias is None for layer in layers}) == 1 and all(
        type(layer) is nn.Linear and type(layer.weight) is nn.Parameter and unchanged(layer, "forward")
        and not any(getattr(layer, name) for name in HOOKS) for layer in layers
    )  # fmt: skip
