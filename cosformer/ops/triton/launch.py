"""The Triton backend: on Hopper in bf16 its own kernels, elsewhere and for what those do not take the generic walk."""

import functools
import math
import warnings
from types import ModuleType

import torch
import triton
from torch import Tensor

from cosformer.ops.features import empty_like_rows
from cosformer.ops.packed import Sequences
from cosformer.ops.problem import Gradients, Into, Problem, Results
from cosformer.ops.triton import generic
from cosformer.ops.triton.kernels import step_kernel

WIDEST = 256


def unsupported(device: str, dtype: torch.dtype, widest: int) -> str | None:
    """Why such tensors cannot be taken here; None if they can."""
    if device != "cuda" and not triton.knobs.runtime.interpret:
        return f"Triton needs a CUDA device, and the tensors are on {device}"
    if dtype not in generic.WIDEST_PART:
        return f"{dtype} has no Triton kernel"
    if widest > WIDEST:
        return f"a head of width {widest} is wider than the Triton kernels' {WIDEST}"
    return None


@functools.cache
def _hopper(device: torch.device) -> ModuleType | None:
    """The kernels for Hopper, on such a chip and with a Triton that has Gluon."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    try:
        from cosformer.ops.triton import hopper
    except (ImportError, AttributeError) as error:
        for heads in ("narrow", "wide"):
            _give_up(heads, error)
        return None
    return hopper


_given_up: dict[str, Exception] = {}
"""Narrow or wide heads whose kernels this Triton cannot compile, and why."""


def _give_up(heads: str, error: Exception) -> None:
    """The generic kernels run instead, and say so once."""
    if str(error) not in map(str, _given_up.values()):
        warnings.warn(
            f"cosformer's kernels for Hopper ({heads} heads) cannot run, slower generic ones do: {error}",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    _given_up[heads] = error


def _heads(q: Tensor, v: Tensor) -> str:
    return "wide" if max(q.shape[3], v.shape[3]) > 64 else "narrow"


def _fast(*tensors: Tensor) -> ModuleType | None:
    """tensors: q, k, v first."""
    hopper = None if _heads(tensors[0], tensors[2]) in _given_up else _hopper(tensors[0].device)
    return hopper if hopper is not None and hopper.takes(*tensors) else None


def forward(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None,
    sequences: Sequences, problem: Problem,
) -> Results:  # fmt: skip
    arguments = (q, k, v, key_mask, state, norm, sequences, problem)
    with torch.cuda.device_of(q):
        if (hopper := _fast(q, k, v)) is not None:
            try:
                return hopper.forward(*arguments)
            except hopper.Unusable as error:
                _give_up(_heads(q, v), error)
        return generic.forward(*arguments)


def backward(
    do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor,
    key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None, sequences: Sequences, problem: Problem,
    into: Into = None,
) -> Gradients:  # fmt: skip
    arguments = (do, dstate, dnorm, q, k, v, o, z, key_mask, state, norm, sequences, problem, into)
    with torch.cuda.device_of(q):
        if (hopper := _fast(q, k, v, o, do)) is not None:
            try:
                return hopper.backward(*arguments)
            except hopper.Unusable as error:
                _give_up(_heads(q, v), error)
        return generic.backward(*arguments)


def step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, norm: Tensor, key_mask: Tensor | None, problem: Problem
) -> Tensor:
    """One token, [B, H, 1, ...]; `state` and `norm` are updated in place by one kernel."""
    o = empty_like_rows(q, v.shape[3])
    heads, kw, vw = k.shape[1], k.shape[3], v.shape[3]
    b_k = triton.next_power_of_2(kw)
    half = math.sin(problem.theta / 2)
    strides = [s for x in (q, k, v, o) for s in (x.stride(0), x.stride(1), x.stride(3))]
    mask = state if key_mask is None else key_mask.view(torch.uint8)
    with torch.cuda.device_of(q):
        step_kernel[(q.shape[0] * heads,)](
            q, k, v, o, state, norm, mask, *strides, mask.stride(0), heads, 2 * half * half, math.sin(problem.theta),
            problem.eps, K=kw, V=vw, BK=b_k, BV=min(triton.next_power_of_2(vw), max(1, 4096 // b_k)),
            GROUP=q.shape[1] // heads, MAP=problem.feature_map, MASKED=key_mask is not None,
            NORMALIZE=problem.normalize,
        )  # fmt: skip
    return o


def configurations() -> dict[str, str]:
    """What is compiled for each class of shapes: a new length compiles nothing, and nothing is tuned at run time."""
    made = {
        "Hopper, bf16, K and V a multiple of 8 up to 64": "wgmma in Gluon: chunk 64, 4 warps, 2 buffers",
        "Hopper, bf16, … up to 128": "wgmma in Gluon: chunk 64, 8 warps for the state and 4 for results, full: 8",
    }
    for dtype, widest in generic.WIDEST_PART.items():
        for width in (64, 128, 256):
            shape = generic.choose_shape(min(width, widest), width, dtype)
            parts = triton.cdiv(width, widest)
            made[f"generic, {str(dtype).removeprefix('torch.')}, up to {width}"] = (
                f"chunk {generic.CHUNK}, {shape.outer} columns a program, {shape.warps} warps, {shape.stages} stages"
                + (f", inner width in {parts} parts" if parts > 1 else "")
            )
    return made
