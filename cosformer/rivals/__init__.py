"""The attentions cosFormer is compared with, one file each. Importing this registers them with the models."""

from cosformer.rivals.drawn_features import redraw_features
from cosformer.rivals.feature_attention import feature_attention
from cosformer.rivals.linear import LinearKind, NoCosKind, linear_attention
from cosformer.rivals.performer import PerformerKind, performer_attention
from cosformer.rivals.rfa import GatedRfaKind, RfaKind, rfa_attention

__all__ = [
    "GatedRfaKind",
    "LinearKind",
    "NoCosKind",
    "PerformerKind",
    "RfaKind",
    "feature_attention",
    "linear_attention",
    "performer_attention",
    "redraw_features",
    "rfa_attention",
]
