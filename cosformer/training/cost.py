"""Floating-point operations of training, by formula, to set tokens per second against a measured peak."""

from cosformer.models import CosformerConfig
from cosformer.models.inspection import describe

TRAINING = 3  # forward once, backward twice: of products with weights; attention is counted alike


def training_flops_per_token(config: CosformerConfig, length: int) -> float | None:
    """Per token of a sequence of `length`; None where a block's attention has no formula.

    In an encoder–decoder every token is counted through both stacks, though it passes one: an upper bound, so None too.
    """
    if config.is_encoder_decoder:
        return None
    found = describe(config)["flops_per_token"]
    if found["attention"] is None:
        return None
    seen = length / 2 if config.causal else length  # on average
    return TRAINING * (found["weights"] + found["attention"] + found["attention_per_token_of_context"] * seen)
