"""The attentions cosFormer is compared with, one file each. Importing this registers them with the models."""

from cosformer.models.one_vs_each import one_vs_each, one_vs_each_loss
from cosformer.rivals.bigbird import BigBirdKind, bigbird_attention
from cosformer.rivals.drawn_features import redraw_features
from cosformer.rivals.feature_attention import feature_attention
from cosformer.rivals.linear import LinearKind, NoCosKind, linear_attention
from cosformer.rivals.linear_positions import rotated_attention
from cosformer.rivals.linformer import LinformerKind, linformer_attention
from cosformer.rivals.performer import PerformerKind, performer_attention
from cosformer.rivals.reformer import ReformerKind, reformer_attention
from cosformer.rivals.rfa import GatedRfaKind, RfaKind, rfa_attention
from cosformer.rivals.sparse import SparseKind, sparse_attention

__all__ = [
    "BigBirdKind",
    "GatedRfaKind",
    "LinearKind",
    "LinformerKind",
    "NoCosKind",
    "PerformerKind",
    "ReformerKind",
    "RfaKind",
    "SparseKind",
    "bigbird_attention",
    "feature_attention",
    "linear_attention",
    "linformer_attention",
    "one_vs_each",
    "one_vs_each_loss",
    "performer_attention",
    "redraw_features",
    "reformer_attention",
    "rfa_attention",
    "rotated_attention",
    "sparse_attention",
]
