"""Exact cosine-reweighted attention in linear time, on CPU and GPU."""

from cosformer.ops.attention import attention_step, cosformer_attention
from cosformer.ops.reference import attention_reference, attention_weights
from cosformer.ops.state import AttentionState
from cosformer.version import __version__

__all__ = [
    "AttentionState",
    "__version__",
    "attention_reference",
    "attention_step",
    "attention_weights",
    "cosformer_attention",
]
