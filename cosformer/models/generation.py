"""What `generate()` of transformers needs to know about these models."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from cosformer.models.configuration import CosformerConfig
from cosformer.models.layout import positions_of
from cosformer.models.model import make_masks


def masks_for_generate(
    config: CosformerConfig, inputs_embeds: Tensor, attention_mask: Tensor | None, past_key_values: Cache | None,
    position_ids: Tensor | None = None, **_: Any,
) -> dict[str, Tensor | None]:  # fmt: skip
    """Masks of fixed size, so that a step is compiled once."""
    keys, allowed = make_masks(config, inputs_embeds, attention_mask, past_key_values, causal=True)
    new, positions = inputs_embeds.shape[1], None
    if attention_mask is not None and position_ids is None:
        positions = positions_of(attention_mask, None, 0, new, inputs_embeds.device)
    return {"keys": keys, "softmax": allowed, "positions": positions}
