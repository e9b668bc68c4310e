"""The attentions cosFormer is compared with, one file each. Importing this registers them with the models."""

from cosformer.rivals.feature_attention import feature_attention
from cosformer.rivals.linear import LinearKind, NoCosKind, linear_attention

__all__ = ["LinearKind", "NoCosKind", "feature_attention", "linear_attention"]
