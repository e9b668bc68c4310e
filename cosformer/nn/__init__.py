"""Modules around the operator."""

from cosformer.nn.attention import CosformerAttention

__all__ = ["CosformerAttention"]
