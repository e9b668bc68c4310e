"""attention="linear": the Linear Transformer (Katharopoulos et al. 2020), φ = elu + 1; and cosFormer without cosine."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from cosformer.models.configuration import CosformerConfig
from cosformer.models.cosformer_kind import CosformerKind
from cosformer.models.kinds import AttentionKind, register_attention
from cosformer.models.layout import Layout
from cosformer.ops.attention import cosformer_attention
from cosformer.ops.features import FEATURE_MAPS
from cosformer.rivals.linear_positions import PositionedKind
from cosformer.rivals.states import NO_TURN


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None, feature_map: str = "elu1", eps: float = 1e-6, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """o[t] = Σ_s φ(q[t])·φ(k[s]) v[s] / Σ_s φ(q[t])·φ(k[s]), φ(x) = elu(x) + 1; shapes as in `cosformer_attention`."""
    return cosformer_attention(
        q, k, v, causal=causal, horizon=NO_TURN, key_mask=key_mask, cu_seqlens=cu_seqlens, feature_map=feature_map,
        eps=eps, backend=backend,
    )  # fmt: skip


class UnturnedKind(PositionedKind, CosformerKind):
    """cosFormer without re-weighting: every cosine is 1, so length has no bound."""

    needs_horizon = False

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        self.horizon = NO_TURN

    def weights(self, q: Tensor, k: Tensor, layout: Layout) -> Tensor:
        if self.positions.spe is None and not self.positions.rotates:
            return super().weights(q, k, layout)
        if self.norm is not None:
            raise ValueError(
                "normalizer='norm' with spe or rotary='numerator' has no weights to draw: a norm hides them"
            )
        return AttentionKind.weights(self, q, k, layout)

    @property
    def takes_joined(self) -> bool:
        return self.attends_as(UnturnedKind) and self.positions.spe is None and not self.positions.rotates

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        q, k = self.positions.coded(q, k, layout)
        if not self.positions.rotates:
            return super().attend(q, k, v, layout, cache)
        phi = FEATURE_MAPS[self.options["feature_map"]]
        o = self.attend_rotated(phi(q), phi(k), v, layout, cache, normalize=self.options["normalize"])
        return self._normed(o)


class LinearKind(UnturnedKind):
    """φ = elu + 1, whatever `config.feature_map` says of cosFormer blocks."""

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        self.options: dict[str, Any] = {**self.options, "feature_map": "elu1"}


class NoCosKind(UnturnedKind):
    """The paper's ablation: φ of the config (relu), no cosine; nothing else differs from "cosformer"."""


register_attention("linear", LinearKind)
register_attention("cosformer_nocos", NoCosKind)
