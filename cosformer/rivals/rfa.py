"""attention="rfa", "rfa_gated": Random Feature Attention (Peng et al. 2021), sines and cosines of unit vectors."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import Cost, register_attention
from cosformer.models.layout import Layout
from cosformer.ops.checks import check_inputs, check_tensors
from cosformer.ops.cost import flops_per_token
from cosformer.ops.features import lower_for_autocast, no_autocast, sum_dtype
from cosformer.ops.state import AttentionState
from cosformer.rivals.drawn_features import DrawnFeatures, gaussian
from cosformer.rivals.feature_attention import WIDEST, FeatureKind, feature_attention
from cosformer.rivals.function_checks import check_weight, check_width
from cosformer.rivals.gated import CHUNK, gated_attention
from cosformer.rivals.linear_positions import PositionOptions
from cosformer.rivals.states import NO_TURN, state_layer
from cosformer.rivals.whole_sequence import refuse_to_trace_packed

EPS = 1e-6
"""Sums of sines and cosines may cancel: weights estimated at less than this count as this."""


def rfa_features(x: Tensor, directions: Tensor) -> Tensor:
    """[sin(w·x̂), cos(w·x̂)] / √D for x̂ = x/‖x‖ and D directions w [Hx or 1, D, K]: 2D features, for x [B,Hx,T,K].

    For Gaussian w of deviation σ the mean of φ(q)·φ(k) is exp(−σ²‖q̂ − k̂‖²/2) = exp(σ² q̂·k̂) / exp(σ²).
    """
    dtype = sum_dtype(x.dtype)
    with no_autocast(x):
        angles = F.normalize(x.to(dtype), dim=-1) @ directions.to(dtype).mT  # [B, Hx, T, D]
        return (torch.cat([angles.sin(), angles.cos()], -1) * directions.shape[-2] ** -0.5).to(x.dtype)


def rfa_attention(
    q: Tensor, k: Tensor, v: Tensor, directions: Tensor, *, causal: bool = False, key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None, eps: float = EPS, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """softmax(σ² q̂·k̂) V as estimated with directions [Hkv or 1, D, K] of deviation σ; else as `cosformer_attention`."""
    check_tensors(q, k, v)
    check_inputs(*lower_for_autocast(q, k, v))
    check_weight("directions", directions, "[Hkv or 1, D, K]", q)
    check_width("directions", directions.shape[2], q=q, k=k)
    if directions.shape[0] not in (1, k.shape[1]):
        raise ValueError(
            f"directions has {directions.shape[0]} heads but k has {k.shape[1]}: draw some for each key head, or "
            "one set for all"
        )
    return feature_attention(
        rfa_features(q, _for_queries(directions, q, k)), rfa_features(k, directions), v, causal=causal,
        key_mask=key_mask, cu_seqlens=cu_seqlens, eps=eps, backend=backend,
    )  # fmt: skip


def _for_queries(directions: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Queries meet keys by the same directions: those of the key head they read."""
    return directions if directions.shape[0] == 1 else directions.repeat_interleave(q.shape[1] // k.shape[1], 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class RfaOptions(PositionOptions):
    features: int | None = None
    """D random directions, 2D features; None: the width of a head, at most 128 (what our kernels take whole)."""
    redraw: int = 1
    """Training passes between draws (the paper draws for each); 0: drawn once."""

    def __post_init__(self) -> None:
        PositionOptions.__post_init__(self)
        if self.features is not None and self.features < 1:
            raise ValueError(f"features={self.features}: use at least 1, or None for the width of a head")
        if self.redraw < 0:
            raise ValueError(f"redraw={self.redraw}: it counts training passes; use 0 to draw once")


class RfaKind(FeatureKind):
    """A learned σ for every key head and direction of the space, and directions of each head's own."""

    Options = RfaOptions
    eps = EPS

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        options: RfaOptions = self.options_of(config)
        assert config.num_key_value_heads is not None
        self.heads, width = config.num_key_value_heads, self.key_width(config)
        shape = (self.heads, self.feature_width(config) // 2, width)
        self.drawn = DrawnFeatures(
            functools.partial(_gaussian, shape=shape), shape, redraw=options.redraw, seed=options.seed, layer=layer
        )
        self.sigma = nn.Parameter(torch.ones(self.heads, 1, width))

    @classmethod
    def feature_width(cls, config: CosformerConfig) -> int:
        options: RfaOptions = cls.options_of(config)
        return 2 * (options.features or min(cls.key_width(config), WIDEST // 2))

    @classmethod
    def feature_flops(cls, config: CosformerConfig) -> int:
        return cls.key_width(config) * cls.feature_width(config)  # an angle is a sine and a cosine

    def features(
        self, q: Tensor, k: Tensor | None, layout: Layout, keys: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        directions = self.drawn() * self.sigma  # [Hkv, D, K]
        phi_k = None if k is None else rfa_features(k, directions)
        return rfa_features(q, directions.repeat_interleave(q.shape[1] // self.heads, 0)), phi_k


class GatedRfaKind(RfaKind):
    """S[t] = g S[t−1] + (1 − g) φ(k)⊗[v, 1] with a gate g of each token and key head: the past fades as it is told to.

    The gate reads the head's key, a linear map of the token as in the paper; it begins at sigmoid(2) = 0.88 (ours).
    """

    across_too = False

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        assert config.head_dim is not None
        self.gate = nn.Parameter(torch.zeros(self.heads, 1, config.head_dim))
        self.gate_bias = nn.Parameter(torch.full((self.heads, 1), 2.0))

    @classmethod
    def check(cls, config: CosformerConfig) -> None:
        super().check(config)
        if cls.options_of(config).rotary == "numerator":
            raise ValueError(
                "attention='rfa_gated' with rotary='numerator': nobody has defined a gated sum with two kinds of keys; "
                "use rotary='before'"
            )
        if not config.causal:
            raise ValueError(
                "attention='rfa_gated' with causal=False: its gate is a recurrence, which has a before and an after; "
                "use attention='rfa' in an encoder"
            )

    @classmethod
    def cost(cls, config: CosformerConfig, *, causal: bool) -> Cost:
        """A state of one half, written once and read by every query head; tiles of CHUNK inside a chunk."""
        found = super().cost(config, causal=causal)
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        heads, keys = config.num_attention_heads, config.num_key_value_heads
        width, values = cls.feature_width(config), config.head_dim + 1
        ours = 2 * width * values * (heads + keys) + 2 * CHUNK * (width + values) * heads
        other = heads * flops_per_token(width, config.head_dim, causal=causal)
        return dataclasses.replace(found, flops=found.flops - other + ours)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        phi_q, phi_k = self.features(*self.positions.coded(q, k, layout), layout, layout.key_mask)
        assert phi_k is not None
        with no_autocast(q):
            dtype = sum_dtype(q.dtype)
            opening = (k.to(dtype) * self.gate.to(dtype)).sum(-1) + self.gate_bias.to(dtype)  # [B, Hkv, T]
        options = {"key_mask": layout.key_mask, "eps": self.eps}
        if layout.offsets is not None:
            refuse_to_trace_packed("attention='rfa_gated'")
            cuts = [slice(i, j) for i, j in itertools.pairwise(layout.offsets.tolist())]
            pieces = [
                gated_attention(phi_q[:, :, c], phi_k[:, :, c], v[:, :, c], opening[:, :, c], eps=self.eps)[0]
                for c in cuts
            ]
            return torch.cat(pieces, 2)
        if cache is None:
            return gated_attention(phi_q, phi_k, v, opening, **options)[0]
        past = state_layer(cache, self.layer)
        if not past.is_initialized:
            past.lazy_initialization(phi_k, v)
        before = past.state(NO_TURN)
        o, sums, norm = gated_attention(
            phi_q, phi_k, v, opening, sums=before.sums[:, :, 0], norm=before.norm[:, :, 0], **options
        )
        whole = [torch.stack([x, torch.zeros_like(x)], 2) for x in (sums, norm)]  # nothing turns: no imaginary part
        past.keep(AttentionState(sums=whole[0], norm=whole[1], length=0, horizon=NO_TURN))
        past.advance(q.shape[2])
        return o


def _gaussian(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return gaussian(generator, *shape)


register_attention("rfa", RfaKind)
register_attention("rfa_gated", GatedRfaKind)
