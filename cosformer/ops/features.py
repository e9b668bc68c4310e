"""The feature map φ and the clock of the method: angles, cosines and the turn of a state."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

LEAKY_SLOPE = 0.01

FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # the paper's
    "identity": lambda x: x,
    "leaky_relu": lambda x: F.leaky_relu(x, LEAKY_SLOPE),
    "elu1": lambda x: F.elu(x) + 1,
    "silu": F.silu,
}


def feature_map_gradient(name: str, x: Tensor) -> Tensor:
    """φ'(x), itself differentiable."""
    match name:
        case "relu":
            return (x > 0).to(x.dtype)
        case "identity":
            return torch.ones_like(x)
        case "leaky_relu":
            return torch.full_like(x, LEAKY_SLOPE).masked_fill(x > 0, 1)
        case "elu1":
            return torch.exp(x.clamp(max=0))
        case "silu":
            s = torch.sigmoid(x)
            return s * (1 + x * (1 - s))
    raise AssertionError(name)


def angle(horizon: int | float) -> float:
    """θ = π / (2M): two tokens M apart get weight cos(π/2) = 0."""
    return math.pi / (2 * horizon)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums, normalisers and states for inputs of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def phases(start: int, stop: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos θn and sin θn for n in [start, stop), reckoned in float64 and rounded once to the dtype of `like`."""
    return clock(torch.arange(start, stop), theta, like)


def clock(steps: Tensor, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of θ·steps, reckoned in float64 where the steps are and rounded once to `like`, without a wait."""
    # moved, then converted: MPS, which has no float64, cannot do both at once
    by = steps.to(_with_float64(steps.device)).to(torch.float64) * theta
    # CUDA has read memory that is not pinned before the call returns; a compiler would pin it
    quick = like.is_cuda and not by.is_cuda and not torch.compiler.is_compiling()
    return by.cos().to(like, non_blocking=quick), by.sin().to(like, non_blocking=quick)


def _with_float64(device: torch.device) -> torch.device:
    return device if device.type in ("cpu", "cuda", "meta") else torch.device("cpu")


def turn(sums: Tensor, steps: int | Tensor, theta: float) -> Tensor:
    """e^{iθ·steps} · sums, for sums [N, H, 2, ...] holding the real and the imaginary part; steps may differ by row."""
    re, im = sums.unbind(2)
    if not isinstance(steps, Tensor) and not torch.compiler.is_compiling():  # a compiled length is a symbol
        cos, sin = math.cos(steps * theta), math.sin(steps * theta)
    else:
        if not isinstance(steps, Tensor):
            steps = torch.full((), steps, dtype=torch.int64, device=_with_float64(sums.device))
        cos, sin = (x.view(-1, *(1,) * (re.dim() - 1)) if x.dim() else x for x in clock(steps, theta, sums))
    return torch.stack([cos * re - sin * im, sin * re + cos * im], 2)


def conjugate(sums: Tensor) -> Tensor:
    re, im = sums.unbind(2)
    return torch.stack([re, -im], 2)


def clamp_norm(z: Tensor, eps: float) -> Tensor:
    """z kept away from 0: eps where |z| < eps. A row without any weight divides 0 by eps and comes out 0."""
    return torch.where(z.abs() < eps, eps, z)


def lower_for_autocast(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, inputs in its dtype (float64 stays), as torch does for its own attention."""
    device = inputs[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return inputs
    low = torch.get_autocast_dtype(device)
    return tuple(x.to(low) if x.dtype in (torch.float32, torch.bfloat16, torch.float16) else x for x in inputs)


def no_autocast(x: Tensor) -> AbstractContextManager:
    """Sums stay in fp32 whatever autocast says. (is_autocast_available cannot be compiled with torch 2.11.)"""
    device = x.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def empty_like_rows(like: Tensor, width: int, heads: int | None = None) -> Tensor:
    """An uninitialised [B, H, T, width] in the memory order of `like`, so that heads merge back without a copy."""
    b, h, t, _ = like.shape
    h = heads or h
    if like.stride(1) < like.stride(2):
        return like.new_empty(b, t, h, width).transpose(1, 2)
    return like.new_empty(b, h, t, width)
