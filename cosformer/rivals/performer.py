"""attention="performer": FAVOR+ (Choromanski et al. 2021), positive random features whose products estimate softmax."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import register_attention
from cosformer.models.layout import Layout
from cosformer.ops.checks import check_inputs, check_key_mask, check_offsets, check_tensors
from cosformer.ops.features import lower_for_autocast, no_autocast, sum_dtype
from cosformer.rivals.drawn_features import DrawnFeatures, orthogonal
from cosformer.rivals.feature_attention import EPS, WIDEST, FeatureKind, feature_attention
from cosformer.rivals.function_checks import check_weight, check_width
from cosformer.rivals.linear_positions import PositionOptions

FLOOR = 1e-4  # of the published code: no feature is ever quite zero


def positive_features(x: Tensor, projection: Tensor, *, shift: Tensor | float = 0.0, floor: float = 0.0) -> Tensor:
    """(exp(x'·w − ‖x'‖²/2 − shift) + floor) / √m with x' = x·K^−¼, for x [..., K] and m directions w [m, K].

    Without shift and floor, φ(q)·φ(k) has the mean exp(q·k/√K) over Gaussian w, orthogonal or not.
    """
    return (torch.exp(_exponents(x, projection) - shift) + floor) / math.sqrt(projection.shape[0])


def performer_features(
    q: Tensor, k: Tensor | None, projection: Tensor, *, whole: bool, key_mask: Tensor | None = None,
    offsets: Tensor | None = None, floor: float = FLOOR,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """φ(q) [B,H,T,m], φ(k) [B,Hkv,S,m]. A factor common to a query's or to all keys' features cancels in attention.

    So each query is shifted by its own largest exponent. Keys are shifted by the largest of all, if `whole`: every
    query sees all keys (of its own sequence, where `offsets` say that several are packed into one row). Else by
    nothing, since what comes later must not show, not even in the floor.
    """
    with no_autocast(q):
        a = _exponents(q, projection)
        phi_q = (torch.exp(a - a.detach().amax(-1, keepdim=True)) + floor) / math.sqrt(projection.shape[0])
        if k is None:
            return _lowered(phi_q, q), None
        b = _exponents(k, projection)  # [B, Hkv, S, m]
        if whole:
            seen = b.detach()
            if key_mask is not None:
                seen = seen.masked_fill(~key_mask[:, None, :, None], -math.inf)
            most = seen.amax((-2, -1), keepdim=True) if offsets is None else _largest_of_each(seen, offsets)
            b = b - torch.where(most.isfinite(), most, 0)  # a row without keys has no largest
        if key_mask is not None:
            b = b.masked_fill(~key_mask[:, None, :, None], 0)  # exp of what padding holds may not be finite
        phi_k = (torch.exp(b) + floor) / math.sqrt(projection.shape[0])
        return _lowered(phi_q, q), _lowered(phi_k, q)


def performer_attention(
    q: Tensor, k: Tensor, v: Tensor, projection: Tensor, *, causal: bool = False, key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None, floor: float = FLOOR, eps: float = EPS, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """softmax(QKᵀ/√K)V as estimated with the directions `projection` [m, K]; else as `cosformer_attention`."""
    check_tensors(q, k, v)
    check_inputs(*lower_for_autocast(q, k, v))
    check_weight("projection", projection, "[m, K]", q)
    check_width("projection", projection.shape[1], q=q, k=k)
    check_key_mask(key_mask, k)
    check_offsets(cu_seqlens, None, q)
    phi_q, phi_k = performer_features(
        q, k, projection, whole=not causal, key_mask=key_mask, offsets=cu_seqlens, floor=floor
    )
    assert phi_k is not None
    o = feature_attention(
        phi_q, phi_k, v.to(phi_k.dtype), causal=causal, key_mask=key_mask, cu_seqlens=cu_seqlens, eps=eps,
        backend=backend,
    )  # fmt: skip
    return o.to(v.dtype)


def _exponents(x: Tensor, projection: Tensor) -> Tensor:
    dtype = sum_dtype(x.dtype)
    x = x.to(dtype) * x.shape[-1] ** -0.25
    return x @ projection.to(dtype).mT - x.square().sum(-1, keepdim=True) / 2


def _largest_of_each(exponents: Tensor, offsets: Tensor) -> Tensor:
    """[1,Hkv,S,1]: for every key the largest exponent in its sequence, of [1,Hkv,S,m] and offsets [N + 1]."""
    largest = exponents.amax(-1)  # [1, Hkv, S]
    places = torch.arange(largest.shape[-1], device=largest.device)
    sequence = torch.bucketize(places, offsets.to(places), right=True) - 1
    sequence = sequence.clamp(0, offsets.shape[0] - 2)  # wrong offsets are refused later, by the operator
    index = sequence.expand_as(largest)
    most = largest.new_full((*largest.shape[:-1], offsets.shape[0] - 1), -math.inf)
    return most.scatter_reduce(-1, index, largest, "amax").gather(-1, index)[..., None]


def _lowered(phi: Tensor, like: Tensor) -> Tensor:
    """In the caller's dtype, but for fp16: keys that are not shifted may exceed its 65,504."""
    return phi if like.dtype == torch.float16 else phi.to(like.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class PerformerOptions(PositionOptions):
    features: int | None = None
    """Random directions; None: near K·ln K for heads of width K (`default_features`)."""
    redraw: int = 1_000
    """Training passes between draws; 0: drawn once."""

    def __post_init__(self) -> None:
        PositionOptions.__post_init__(self)
        if self.features is not None and self.features < 1:
            raise ValueError(f"features={self.features}: use at least 1, or None for near K·ln K")
        if self.redraw < 0:
            raise ValueError(f"redraw={self.redraw}: it counts training passes; use 0 to draw once")


def default_features(width: int) -> int:
    """K·ln K as in the paper, but of what our kernels take whole (ours): a multiple of 16, and at most 256.

    96 for heads of 32 down from 110, 256 for heads of 64 down from 266. Below 16 it is K·ln K itself.
    """
    wanted = max(int(width * math.log(width)), 1)
    return wanted if wanted < 16 else min(wanted // 16 * 16, WIDEST)


class PerformerKind(FeatureKind):
    Options = PerformerOptions

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        options: PerformerOptions = self.options_of(config)
        width, count = self.key_width(config), self.feature_width(config)
        self.drawn = DrawnFeatures(
            functools.partial(orthogonal, features=count, width=width), (count, width), redraw=options.redraw,
            seed=options.seed, layer=layer,
        )  # fmt: skip

    @classmethod
    def feature_width(cls, config: CosformerConfig) -> int:
        options: PerformerOptions = cls.options_of(config)
        return options.features or default_features(cls.key_width(config))

    @classmethod
    def feature_flops(cls, config: CosformerConfig) -> int:
        return 2 * cls.key_width(config) * cls.feature_width(config)

    def features(
        self, q: Tensor, k: Tensor | None, layout: Layout, keys: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return performer_features(q, k, self.drawn(), whole=not self.causal, key_mask=keys, offsets=layout.offsets)


register_attention("performer", PerformerKind)
