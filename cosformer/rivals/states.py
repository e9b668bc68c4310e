"""States that do not turn: the horizon at which the operator re-weights nothing, and the cache that keeps such a state.

The operator re-weights by cos(π(t − s)/(2M)). At M = 2⁶² that is no re-weighting, exactly and not nearly: up to a
distance of 10⁹ the cosine differs from 1 by less than 1e-19 and rounds to 1 even in float64; what the sines add is as
small. The price is a state of two halves, of which one stays empty.
"""

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from cosformer.models.cache import StateLayer

NO_TURN = 2**62
"""The horizon at which every cosine is 1."""


def state_layer(cache: Cache, layer: int) -> StateLayer:
    held = cache.layers[layer]
    if not isinstance(held, StateLayer):
        raise TypeError(
            f"past_key_values holds a {type(held).__name__} for block {layer}, which keeps a state: make the cache "
            "with the config of this model, as in DynamicCache(config=model.config)"
        )
    return held


def wants_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
