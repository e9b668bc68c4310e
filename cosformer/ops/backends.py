"""Which implementation runs, and why. `auto` never fails for want of a compiler: it says what it took instead."""

import functools
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cosformer.ops import chunked
from cosformer.ops.cpu import launch
from cosformer.ops.cpu.build import NativeUnavailable, load_library
from cosformer.ops.packed import Sequences
from cosformer.ops.problem import Gradients, Problem, Results


class Backend(Protocol):
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None,
        sequences: Sequences, problem: Problem,
    ) -> Results: ...  # fmt: skip

    def backward(
        self, do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
        z: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None, sequences: Sequences,
        problem: Problem,
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


def choose_backend(backend: str, device: torch.device) -> Choice:
    """An explicit choice that cannot run raises; `auto` takes the fastest that can."""
    if backend == "auto":
        return _auto(device.type)
    if backend == "torch":
        return Choice("torch", "asked for: plain torch operations", chunked)
    if device.type != "cpu":
        raise ValueError(
            f"backend='cpu' but the tensors are on {device}: the compiled kernel reads host memory; "
            "move the tensors or pass backend='auto'"
        )
    try:
        return Choice("cpu", f"asked for: compiled kernel, {load_library().summary}", launch)
    except NativeUnavailable as error:
        raise RuntimeError(f"backend='cpu' cannot run here: {error}; backend='torch' needs no compiler") from error


@functools.cache
def _auto(device: str) -> Choice:
    if device != "cpu":
        return Choice("torch", f"auto: no kernel of ours for {device}, plain torch operations", chunked)
    try:
        return Choice("cpu", f"auto: compiled kernel, {load_library().summary}", launch)
    except NativeUnavailable as error:
        return Choice("torch", f"auto: no compiled kernel ({error}), plain torch operations", chunked)
