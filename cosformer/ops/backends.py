"""Which implementation runs, and why. `auto` never fails for want of a compiler: it says what it took instead."""

import functools
import warnings
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cosformer.ops import chunked
from cosformer.ops.cpu import launch
from cosformer.ops.cpu.build import NativeUnavailable, load_library
from cosformer.ops.packed import Sequences
from cosformer.ops.problem import Gradients, Into, Problem, Results


class Backend(Protocol):
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None,
        sequences: Sequences, problem: Problem,
    ) -> Results: ...  # fmt: skip

    def backward(
        self, do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
        z: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None, sequences: Sequences,
        problem: Problem, into: Into = None,
    ) -> Gradients: ...  # fmt: skip

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Tensor, norm: Tensor, key_mask: Tensor | None, problem: Problem
    ) -> Tensor: ...


class Choice(NamedTuple):
    name: str
    why: str
    backend: Backend

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


def choose_backend(
    backend: str, device: torch.device, *, dtype: torch.dtype = torch.float32, widest: int = 64
) -> Choice:
    """For tensors of `dtype` whose wider head (K or V) has `widest` numbers.

    An explicit choice that cannot run raises; `auto` takes the fastest that can.
    """
    if backend == "auto":
        return _auto(device.type, dtype, widest)
    if backend == "torch":
        return Choice("torch", "asked for: plain torch operations", chunked)
    try:
        if backend == "triton":
            return Choice("triton", "asked for: Triton kernels", _triton(device.type, dtype, widest))
        if device.type != "cpu":
            raise NativeUnavailable(f"the tensors are on {device} and the compiled kernel reads host memory")
        return Choice("cpu", f"asked for: compiled kernel, {load_library().summary}", launch)
    except NativeUnavailable as error:
        raise RuntimeError(f"backend={backend!r} cannot run here: {error}; backend='torch' runs everywhere") from error


@functools.cache
def _auto(device: str, dtype: torch.dtype, widest: int) -> Choice:
    kernel = "compiled" if device == "cpu" else "Triton"
    try:
        if device == "cpu":
            return Choice("cpu", f"auto: compiled kernel, {load_library().summary}", launch)
        return Choice("triton", "auto: Triton kernels", _triton(device, dtype, widest))
    except NativeUnavailable as error:
        choice = Choice("torch", f"auto: no {kernel} kernel ({error}), plain torch operations", chunked)
        if device == "cuda":
            warnings.warn(f"cosformer runs on {choice}: slower than its kernels", RuntimeWarning, stacklevel=2)
        return choice


def _triton(device: str, dtype: torch.dtype, widest: int) -> Backend:
    try:
        from cosformer.ops.triton import launch as triton_launch
    except (ImportError, AttributeError) as error:
        raise NativeUnavailable(f"Triton is missing or too old: {error}") from error
    if reason := triton_launch.unsupported(device, dtype, widest):
        raise NativeUnavailable(reason)
    return triton_launch
