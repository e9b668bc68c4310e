"""What a backend is asked and what it answers, apart from tensors."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

BACKENDS = ("auto", "cpu", "triton", "torch")


@dataclass(frozen=True, slots=True)
class Problem:
    causal: bool
    theta: float
    feature_map: str
    normalize: bool
    eps: float
    return_state: bool = False


class Results(NamedTuple):
    o: Tensor  # [B, H, T, V]
    z: Tensor  # [B, H, T], the sum of each row's weights before the clamp; empty if not normalised
    state: Tensor  # [N, Hkv, 2, K, V] for N sequences; empty if not wanted
    norm: Tensor  # [N, Hkv, 2, K]; empty if not wanted


Into = tuple[Tensor, Tensor, Tensor] | None
"""Where gradients of q, k and v may be written, [B,H,T,K] of any strides; what comes back tells whether they were."""


class Gradients(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    state: Tensor | None  # None if no state came in
    norm: Tensor | None
