"""Stochastic positional encoding (Liutkus et al. 2021): relative positions for attention without a matrix of weights.

There is nothing to put relative positions into where weights are never formed. SPE puts them into q and k: random codes
q̄, k̄, shared by all tokens, with E[q̄_d(m) k̄_d(n)] = P_d(m − n), a sum of sines learned for every width d. Then the mean
of q̂[m]·k̂[n] is, but for a constant, Σ_d q_d[m] k_d[n] P_d(m − n): for anything that reads q̂ and k̂ alone.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.models.configuration import CosformerConfig
from cosformer.ops.features import no_autocast, sum_dtype
from cosformer.rivals.drawn_features import DrawnFeatures, gaussian


def sine_kernel(apart: Tensor, frequencies: Tensor, phases: Tensor, gains: Tensor, gates: Tensor | None) -> Tensor:
    """P_d(m − n) [..., D] = Σ_j λ²cos(2πf(m − n) + θ) for distances [...] and f, θ, λ [D,J]; gated: δ + (1 − δ)P."""
    waves = torch.cos(2 * math.pi * frequencies * apart[..., None, None] + phases)
    kernel = (gains.square() * waves).sum(-1)
    return kernel if gates is None else gates + (1 - gates) * kernel


def encode(
    x: Tensor, places: Tensor, noise: Tensor, frequencies: Tensor, phases: Tensor | None, gains: Tensor,
    gates: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x̂[t,r] = Σ_d x_d[t] x̄_d[t,r] / (R·D)^¼: x [B,H,T,D] at places [B or 1,T] as R numbers, [B,H,T,R].

    So q̂·k̂/√R, as softmax would scale it, is Σ_d q_d k_d P_d/√D in the mean. f, θ, λ [H,D,J] (phases for queries only,
    gates [H,D]); noise [H,D,2J+1,R] of variance 1, the same for q and k.
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
    return codes.flatten(3) @ noise.flatten(1, 2) * (noise.shape[-1] * x.shape[-1]) ** -0.25


class StochasticPositions(nn.Module):
    """q̂ and k̂ for q and k. Kernels are learned for each key head; they begin slow, with phases near 0 (ours)."""

    def __init__(
        self, config: CosformerConfig, layer: int, *, gated: bool, sines: int, realisations: int, redraw: int, seed: int
    ) -> None:
        super().__init__()
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        self.heads, width = config.num_key_value_heads, config.head_dim
        self.frequencies = nn.Parameter(torch.randn(self.heads, width, sines) - 4)  # f = sigmoid/2: 0.9% of a turn
        self.phases = nn.Parameter(torch.randn(self.heads, width, sines) * 0.1)
        self.gains = nn.Parameter(F.normalize(torch.rand(self.heads, width, sines) + 0.5, dim=-1))  # P(0) near 1
        self.gates = nn.Parameter(torch.zeros(self.heads, width)) if gated else None
        shape = (self.heads, width, 2 * sines + 1, realisations)
        self.drawn = DrawnFeatures(
            functools.partial(_noise, shape=shape), shape, redraw=redraw, seed=seed, layer=f"{layer} spe"
        )

    def forward(self, q: Tensor, k: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """[B,H,T,R] and [B,Hkv,T,R] for q [B,H,T,D] and k [B,Hkv,T,D] at places [B or 1,T]."""
        dtype, group = sum_dtype(q.dtype), q.shape[1] // self.heads
        with no_autocast(q):
            places, noise, f = places.to(dtype), self.drawn().to(dtype), (self.frequencies.sigmoid() / 2).to(dtype)
            gates = None if self.gates is None else self.gates.sigmoid().to(dtype)
            gains = self.gains.to(dtype)
            coded_k = encode(k.to(dtype), places, noise, f, None, gains, gates)
            noise, f, phases, gains = (
                x.repeat_interleave(group, 0) for x in (noise, f, self.phases.to(dtype), gains)
            )  # queries are coded as the key head they read
            gates = None if gates is None else gates.repeat_interleave(group, 0)
            return encode(q.to(dtype), places, noise, f, phases, gains, gates).to(q.dtype), coded_k.to(k.dtype)


def _noise(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return gaussian(generator, *shape)
