"""attention="linformer": softmax over r learned mixtures of the keys (Wang et al. 2020), up to a fixed length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import Cost, register_attention
from cosformer.models.layout import Layout
from cosformer.models.softmax_kind import pair_flops
from cosformer.rivals.whole_sequence import WholeSequenceKind


def linformer_attention(q: Tensor, k: Tensor, v: Tensor, mix_k: Tensor, mix_v: Tensor) -> Tensor:
    """softmax(Q(EK)ᵀ/√K) FV with E = mix_k and F = mix_v [r, M]; a sequence shorter than M is filled up with zeros.

    q [B,H,T,K]; k [B,Hkv,S,K]; v [B,Hkv,S,V], zero where padded. Time O(T·r).
    """
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
    why_not_causal = "each of its mixtures holds keys of the whole sequence, those to come too"
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
        return linformer_attention(q, k, v, self.mix_k, self.mix_v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: None) -> Tensor:
        return self.attend_whole(q, k, v, layout)


register_attention("linformer", LinformerKind)
