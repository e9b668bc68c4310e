"""attention="linformer": softmax over r learned mixtures of the keys (Wang et al. 2020), up to a fixed length."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import Cost, register_attention
from cosformer.models.layout import Layout
from cosformer.models.softmax_kind import pair_flops
from cosformer.rivals.function_checks import check_sequences, check_weight, refuse_causal, sequence_bounds
from cosformer.rivals.whole_sequence import WholeSequenceKind, brought_forward, over_sequences, real_first

WHY_NOT_CAUSAL = "each of its mixtures holds keys of the whole sequence, those to come too"


def linformer_attention(
    q: Tensor, k: Tensor, v: Tensor, mix_k: Tensor, mix_v: Tensor, *, causal: bool = False,
    key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """softmax(Q(EK)ᵀ/√K) FV with E = mix_k and F = mix_v [r, M]; a sequence shorter than M is filled up with zeros.

    q [B,H,T,K]; k [B,Hkv,S,K]; v [B,Hkv,S,V]. Time O(T·r). key_mask and cu_seqlens as in `cosformer_attention`: the
    columns of E and F are for the places among real keys. causal: refused.
    """
    refuse_causal(causal, "linformer", WHY_NOT_CAUSAL)
    packed = None if cu_seqlens is None else "cu_seqlens is for both"
    q, k, v = check_sequences(q, k, v, key_mask, cu_seqlens, places=packed)
    check_weight("mix_k", mix_k, "[r, M]", q)
    check_weight("mix_v", mix_v, "[r, M]", q)
    if mix_k.shape != mix_v.shape:
        raise ValueError(
            f"mix_k has shape {tuple(mix_k.shape)} but mix_v has {tuple(mix_v.shape)}: a mixture of keys goes with one "
            "of values, over the same places; make them of one shape"
        )
    over = functools.partial(linformer_over, mix_k=mix_k, mix_v=mix_v)
    bounds = sequence_bounds(cu_seqlens, q, "linformer_attention")
    if bounds is None and key_mask is not None:  # queries stay where they are: theirs is any place
        order, _, real = real_first(key_mask)
        return over(q, brought_forward(k, key_mask, order), brought_forward(v, key_mask, order), real)
    return over_sequences(over, (q, k, v), key_mask, bounds)


def linformer_over(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, *, mix_k: Tensor, mix_v: Tensor) -> Tensor:
    """The same for rows whose real keys come first, and zeros after them."""
    s = k.shape[2]
    if s > mix_k.shape[1]:
        raise ValueError(
            f"{s} tokens, but the projections have {mix_k.shape[1]} columns: Linformer learns a weight for every "
            "place; use fewer tokens, or train with a longer horizon"
        )
    k, v = mix_k[:, :s].to(k.dtype) @ k, mix_v[:, :s].to(v.dtype) @ v  # [B, Hkv, r, *]
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class LinformerOptions:
    rank: int = 256
    """r: mixtures of keys, whatever the length; at most the horizon."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank={self.rank}: it counts mixtures of keys; use at least 1")


class LinformerKind(WholeSequenceKind):
    """One E and one F for all heads of a block; they begin Gaussian with variance 1/r, as in the paper's proof."""

    Options = LinformerOptions
    causal_too = False
    why_not_causal = WHY_NOT_CAUSAL
    needs_horizon = True

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        rank = self.options_of(config).rank
        self.mix_k = nn.Parameter(torch.randn(rank, config.horizon) * rank**-0.5)
        self.mix_v = nn.Parameter(torch.randn(rank, config.horizon) * rank**-0.5)

    @classmethod
    def cost(cls, config: CosformerConfig, *, causal: bool) -> Cost:
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        rank = cls.options_of(config).rank
        mixing = 4 * rank * config.head_dim * config.num_key_value_heads
        return Cost(flops=mixing + rank * pair_flops(config))

    @classmethod
    def check(cls, config: CosformerConfig) -> None:
        if (rank := cls.options_of(config).rank) > config.horizon:
            raise ValueError(
                f"rank={rank} with horizon={config.horizon}: more mixtures than keys save nothing; set "
                f'attention_options={{"rank": {max(config.horizon // 4, 1)}}} or lower the length'
            )

    def over(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        return linformer_over(q, k, v, real, mix_k=self.mix_k, mix_v=self.mix_v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: None) -> Tensor:
        return self.attend_whole(q, k, v, layout)


register_attention("linformer", LinformerKind)
