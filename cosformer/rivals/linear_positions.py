"""Positions for attention by features φ(q)·φ(k): SPE before φ, or RoPE after it and in the numerator only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import AttentionKind, Cost
from cosformer.models.layout import Layout
from cosformer.nn.positions import rotary_tables, rotate
from cosformer.ops.attention import cosformer_attention
from cosformer.ops.cost import flops_per_token, state_bytes
from cosformer.ops.features import clamp_norm, no_autocast, sum_dtype
from cosformer.ops.state import AttentionState
from cosformer.rivals.drawn_features import check_seed
from cosformer.rivals.spe import StochasticPositions
from cosformer.rivals.states import NO_TURN, state_layer

SPE_DEFAULTS = {"spe_sines": 5, "spe_realisations": 64, "spe_redraw": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionOptions:
    """What all attentions by features may be told of positions. A kind's own options derive from this."""

    rotary: str = "before"
    """Where positions="rotary" of the config turns: q and k before φ, or φ(q) and φ(k) in the numerator (RoFormer)."""
    spe: str = "none"
    """Stochastic positions in q and k: none, sine, or gated (every width learns how much it cares for places)."""
    spe_sines: int | None = None
    """Sines in the kernel of each width; None: 5."""
    spe_realisations: int | None = None
    """Numbers that stand for a head's width; the noise of positions falls as 1 over their root. None: 64."""
    spe_redraw: int | None = None
    """Training passes between draws of the noise, 0: drawn once; None: 1."""
    seed: int = 0
    """Of everything that is drawn at random."""

    def __post_init__(self) -> None:
        if self.rotary not in ("before", "numerator"):
            raise ValueError(f"rotary={self.rotary!r} is unknown: use before or numerator")
        if self.spe not in ("none", "sine", "gated"):
            raise ValueError(f"spe={self.spe!r} is unknown: use none, sine or gated")
        check_seed(self.seed)
        told = {name: getattr(self, name) for name in SPE_DEFAULTS if getattr(self, name) is not None}
        if told and self.spe == "none":
            raise ValueError(f"{', '.join(told)} with spe='none': there is nothing to tell; set spe to sine or gated")
        for name, least in (("spe_sines", 1), ("spe_realisations", 1), ("spe_redraw", 0)):
            if told.get(name, least) < least:
                raise ValueError(f"{name}={told[name]}: use at least {least}")

    def spe_of(self, name: str) -> int:
        told = getattr(self, name)
        return SPE_DEFAULTS[name] if told is None else told


class LinearPositions(nn.Module):
    """The positions of one attention of one block, as its options say."""

    def __init__(self, config: CosformerConfig, layer: int, options: PositionOptions) -> None:
        super().__init__()
        self.rotates, self.base = options.rotary == "numerator", config.rotary_base
        self.spe = None
        if options.spe != "none":
            self.spe = StochasticPositions(
                config, layer, gated=options.spe == "gated", sines=options.spe_of("spe_sines"),
                realisations=options.spe_of("spe_realisations"), redraw=options.spe_of("spe_redraw"), seed=options.seed,
            )  # fmt: skip

    def coded(self, q: Tensor, k: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """q̂ and k̂ where there is SPE; else q and k themselves."""
        if self.spe is None:
            return q, k
        assert layout.places is not None
        return self.spe(q, k, layout.places)

    def tables(self, layout: Layout, phi: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [B or 1, T, F] for features [B,H,T,F], in the dtype of sums."""
        dtype, made = sum_dtype(phi.dtype), layout.rotary
        if made is not None and made[0].shape[-1] == phi.shape[-1] and made[0].dtype == dtype:
            return made
        assert layout.places is not None
        return rotary_tables(layout.places, phi.shape[-1], self.base, dtype)


class PositionedKind(AttentionKind):
    """A kind by features, with the positions of `PositionOptions`."""

    Options = PositionOptions

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        self.positions = LinearPositions(config, layer, self.options_of(config))

    @property
    def rotates_itself(self) -> bool:
        return self.positions.rotates

    @classmethod
    def wants_places(cls, config: CosformerConfig) -> bool:
        options: PositionOptions = cls.options_of(config)
        return options.spe != "none" or options.rotary == "numerator"

    @classmethod
    def key_width(cls, config: CosformerConfig) -> int:
        """Of q and k when φ gets them."""
        options: PositionOptions = cls.options_of(config)
        assert config.head_dim is not None
        return config.head_dim if options.spe == "none" else options.spe_of("spe_realisations")

    @classmethod
    def feature_width(cls, config: CosformerConfig) -> int:
        """Of φ(q) and φ(k)."""
        return cls.key_width(config)

    @classmethod
    def feature_flops(cls, config: CosformerConfig) -> int:
        """To make φ of one query or key from what φ gets; what is not a product does not count."""
        return 0

    @classmethod
    def cost(cls, config: CosformerConfig, *, causal: bool) -> Cost:
        options: PositionOptions = cls.options_of(config)
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        heads, keys, width = config.num_attention_heads, config.num_key_value_heads, cls.feature_width(config)
        each = cls.feature_flops(config)
        if options.spe != "none":
            each += 2 * config.head_dim * (2 * options.spe_of("spe_sines") + 1) * cls.key_width(config)
        flops = heads * flops_per_token(width, config.head_dim, causal=causal) + (heads + keys) * each
        if options.rotary == "numerator":  # once more for the denominator
            flops += heads * flops_per_token(width, 1, causal=causal)
        return Cost(flops=flops, state_bytes=state_bytes(1, keys, width, config.head_dim) if causal else 0)

    @classmethod
    def check(cls, config: CosformerConfig) -> None:
        options: PositionOptions = cls.options_of(config)
        if options.spe != "none" and (config.is_encoder_decoder or config.add_cross_attention):
            raise ValueError(
                f"spe={options.spe!r} has no cross attention: source and target have no common places; use it in an "
                "encoder or a decoder alone"
            )
        if options.rotary != "numerator":
            return
        if config.positions != "rotary":
            raise ValueError(
                f"rotary='numerator' with positions={config.positions!r}: there is no rotation; set positions='rotary'"
            )
        if options.spe != "none":
            raise ValueError(f"rotary='numerator' with spe={options.spe!r}: two kinds of positions; choose one")
        if (width := cls.feature_width(config)) % 2:
            raise ValueError(f"rotary='numerator' with {width} features: they are turned in pairs; use an even number")

    def attend_rotated(
        self, phi_q: Tensor, phi_k: Tensor, v: Tensor, layout: Layout, cache: Cache | None, *, normalize: bool = True,
        eps: float = 1e-6,
    ) -> Tensor:  # fmt: skip
        """`rotated_attention` after what the cache holds."""
        options: dict[str, Any] = {"key_mask": layout.key_mask, "normalize": normalize, "eps": eps}
        tables = self.positions.tables(layout, phi_q)
        if cache is None:
            return rotated_attention(
                phi_q, phi_k, v, tables, causal=self.causal, cu_seqlens=layout.offsets, **options
            )[0]  # fmt: skip
        past = state_layer(cache, self.layer)
        before = past.state(NO_TURN) if past.is_initialized else None
        o, after = rotated_attention(phi_q, phi_k, v, tables, causal=True, state=before, **options)
        assert after is not None
        past.keep(after)
        past.advance(phi_q.shape[2])
        return o


def rotated_attention(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, tables: tuple[Tensor, Tensor], *, causal: bool = False,
    key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None, state: AttentionState | None = None,
    normalize: bool = True, eps: float = 1e-6, backend: str = "auto",
) -> tuple[Tensor, AttentionState | None]:  # fmt: skip
    """o[t] = Σ_s (R_t φ(q[t]))·(R_s φ(k[s])) v[s] / Σ_s φ(q[t])·φ(k[s]), and the state after (None for packed rows).

    Weights are relative, but of either sign; the divisor, left as it was, is a sum of what is not negative (Su et al.
    2021). Two calls of the operator. The state has the rotated keys in `sums` and the others in `norm`.
    """
    for name, phi in (("phi_q", phi_q), ("phi_k", phi_k)):
        if phi.dim() != 4 or any(phi.shape[2:] != table.shape[-2:] for table in tables):
            raise ValueError(
                f"{name} has shape {tuple(phi.shape)} but cos and sin have {[tuple(table.shape) for table in tables]}: "
                "they are [B, H, T, F] and [B or 1, T, F], a turn for every place and feature"
            )
    dtype = v.dtype
    if phi_q.dtype == torch.float16:  # sums that nothing divides pass its 65,504
        phi_q, phi_k, v = phi_q.float(), phi_k.float(), v.float()
    options: dict[str, Any] = {
        "causal": causal, "horizon": NO_TURN, "key_mask": key_mask, "cu_seqlens": cu_seqlens, "feature_map": "identity",
        "normalize": False, "backend": backend,
    }  # fmt: skip

    def summed(q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if cu_seqlens is not None:
            return cosformer_attention(q, k, v, **options), None
        before = None
        if sums is not None:  # the operator's own norm is not asked for
            before = AttentionState(sums=sums, norm=torch.zeros_like(sums[..., 0]), length=0, horizon=NO_TURN)
        o, after = cosformer_attention(q, k, v, state=before, return_state=True, **options)
        return o, after.sums

    with no_autocast(phi_q):
        turned_q, turned_k = (rotate(x.to(tables[0].dtype), tables).to(x.dtype) for x in (phi_q, phi_k))
        o, sums = summed(turned_q, turned_k, v, None if state is None else state.sums)
        norm = None if sums is None else torch.zeros_like(sums[..., :1])
        if normalize:
            z, norm = summed(
                phi_q, phi_k, torch.ones_like(v[..., :1]), None if state is None else state.norm[..., None]
            )
            o = o / clamp_norm(z, eps)
    if sums is None or norm is None:
        return o.to(dtype), None
    length = phi_k.shape[2] + (0 if state is None else state.length)
    return o.to(dtype), AttentionState(sums=sums, norm=norm[..., 0], length=length, horizon=NO_TURN)
