"""attention="linear_spe": stochastic positional encoding (Liutkus et al. 2021) for the Linear Transformer.

Linear attention has no matrix of weights to put relative positions into. SPE puts them into q and k: random codes
q̄, k̄, shared by all tokens, with E[q̄_d(m) k̄_d(n)] = P_d(m − n), a sum of sines learned for every width d. Then the mean
of q̂[m]·k̂[n] is Σ_d q_d[m] k_d[n] P_d(m − n): positions that are relative, for anything that reads q̂ and k̂ alone.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import register_attention
from cosformer.models.layout import Layout, positions_of
from cosformer.ops.features import no_autocast, sum_dtype
from cosformer.rivals.drawn_features import DrawnFeatures, gaussian
from cosformer.rivals.feature_attention import FeatureKind, state_layer


def sine_kernel(apart: Tensor, frequencies: Tensor, phases: Tensor, gains: Tensor, gates: Tensor | None) -> Tensor:
    """P_d(m − n) [..., D] = Σ_j λ²cos(2πf(m − n) + θ) for distances [...] and f, θ, λ [D,J]; gated: δ + (1 − δ)P."""
    waves = torch.cos(2 * math.pi * frequencies * apart[..., None, None] + phases)
    kernel = (gains.square() * waves).sum(-1)
    return kernel if gates is None else gates + (1 - gates) * kernel


def encode(
    x: Tensor, places: Tensor, noise: Tensor, frequencies: Tensor, phases: Tensor | None, gains: Tensor,
    gates: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x̂[t,r] = Σ_d x_d[t] x̄_d[t,r] / √R: x [B,H,T,D] at places [B or 1,T] as R numbers, [B,H,T,R].

    f, θ, λ [H,D,J] (phases for queries only, gates [H,D]); noise [H,D,2J+1,R] of variance 1, the same for q and k.
    """
    turns = 2 * math.pi * frequencies[None, :, None] * places[:, None, :, None, None]  # [B, H, T, D, J]
    if phases is not None:
        turns = turns + phases[None, :, None]
    gains = gains[None, :, None]
    codes = torch.cat([gains * turns.cos(), gains * turns.sin()], -1)  # [B, H, T, D, 2J]
    if gates is None:
        constant = torch.zeros_like(codes[..., :1])
    else:  # a code without place, which the gate mixes in
        codes = codes * (1 - gates).sqrt()[None, :, None, :, None]
        constant = gates.sqrt()[None, :, None, :, None].expand_as(codes[..., :1])
    codes = torch.cat([codes, constant], -1) * x[..., None]
    return codes.flatten(3) @ noise.flatten(1, 2) * noise.shape[-1] ** -0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeOptions:
    sines: int = 5
    """J: sines in the kernel of each width."""
    realisations: int = 64
    """R: numbers that stand for a head's width; the noise of the positions falls as 1/√R."""
    gated: bool = True
    """Let every width learn how much it cares for positions."""
    redraw: int = 1
    """Training passes between draws of the noise; 0: drawn once."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sines < 1 or self.realisations < 1:
            raise ValueError(f"sines={self.sines}, realisations={self.realisations}: use at least 1 of each")
        if self.redraw < 0:
            raise ValueError(f"redraw={self.redraw}: it counts training passes; use 0 to draw once")


class LinearSpeKind(FeatureKind):
    """φ = elu + 1 of q̂ and k̂. Kernels are learned for each key head; they begin slow, with phases near 0 (ours)."""

    Options = SpeOptions
    across_too = False  # source and target have no common places
    eps = 1e-6

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        options: SpeOptions = self.options_of(config)
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        self.heads, width, sines = config.num_key_value_heads, config.head_dim, options.sines
        self.frequencies = nn.Parameter(torch.randn(self.heads, width, sines) - 4)  # f = sigmoid/2: 0.9% of a turn
        self.phases = nn.Parameter(torch.randn(self.heads, width, sines) * 0.1)
        self.gains = nn.Parameter(F.normalize(torch.rand(self.heads, width, sines) + 0.5, dim=-1))  # P(0) near 1
        self.gates = nn.Parameter(torch.zeros(self.heads, width)) if options.gated else None
        shape = (self.heads, width, 2 * sines + 1, options.realisations)
        self.drawn = DrawnFeatures(
            functools.partial(_noise, shape=shape), shape, redraw=options.redraw, seed=options.seed, layer=layer
        )
        self.places: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        past = 0 if cache is None else state_layer(cache, self.layer).get_seq_length()
        under_way = not isinstance(past, int) or past > 0
        if under_way and layout.key_mask is not None:
            raise ValueError(
                "attention='linear_spe' continues from a cache with an attention_mask: places count real tokens, and a "
                "cache does not know how many of its tokens were padding; leave out a mask of ones, or pass "
                "use_cache=False"
            )
        self.places = positions_of(layout.key_mask, layout.offsets, past, q.shape[2], q.device)
        return super().attend(q, k, v, layout, cache)

    def features(
        self, q: Tensor, k: Tensor | None, layout: Layout, keys: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        assert self.places is not None
        assert k is not None
        dtype, group = sum_dtype(q.dtype), q.shape[1] // self.heads
        with no_autocast(q):
            places, noise, f = self.places.to(dtype), self.drawn().to(dtype), self.frequencies.sigmoid() / 2
            gates = None if self.gates is None else self.gates.sigmoid().to(dtype)
            f, gains = f.to(dtype), self.gains.to(dtype)
            coded_k = encode(k.to(dtype), places, noise, f, None, gains, gates)
            noise, f, phases, gains = (
                x.repeat_interleave(group, 0) for x in (noise, f, self.phases.to(dtype), gains)
            )  # queries are coded as the key head they read
            gates = None if gates is None else gates.repeat_interleave(group, 0)
            coded_q = encode(q.to(dtype), places, noise, f, phases, gains, gates)
            return (F.elu(coded_q) + 1).to(q.dtype), (F.elu(coded_k) + 1).to(q.dtype)


def _noise(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return gaussian(generator, *shape)


register_attention("linear_spe", LinearSpeKind)
