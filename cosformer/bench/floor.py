"""What a call costs at least: its bytes over the copy bandwidth, its operations over the matmul rate, both measured."""

import statistics
from dataclasses import dataclass, field

import torch

from cosformer.bench.clock import Clock
from cosformer.ops.cost import CHUNK, bytes_moved

# Backward reads q, k, v, o, do and writes dq, dk, dv: 8 tensors after the 4 of the forward.
TRAINING_BYTES = 3
# Its products: state and scores again, then five for the gradients, against two; as counted for softmax too.
TRAINING_FLOPS = 3.5


def floor_bytes(batch: int, heads: int, length: int, width: int, itemsize: int, *, training: bool) -> int:
    """Bytes of q, k, v and o, and with gradients of q, k, v, o, do, dq, dk and dv once more: 4 or 12 tensors."""
    once = bytes_moved(batch, heads, length, width, width, itemsize)
    return once * TRAINING_BYTES if training else once


def result_bytes(batch: int, heads: int, length: int, width: int, itemsize: int, *, training: bool) -> int:
    """What a call must leave behind: o, and with gradients dq, dk and dv."""
    once = batch * heads * length * width * itemsize
    return 4 * once if training else once


def softmax_flops(length: int, width: int) -> float:
    """Per token and head, causal: half of the T×T products with K and with V (a multiply-add counts two)."""
    return 2.0 * length * width


def linear_flops(features: int, width: int) -> float:
    """Per token and head of chunked linear attention on `features`: the state written and read, a chunk inside."""
    return 4.0 * features * width + 2.0 * CHUNK * (features + width)


@dataclass(slots=True)
class Rates:
    """Of this device in these minutes: medians over all runs."""

    copies: list[float] = field(default_factory=list)
    """By run, as `copy_rate` gives it."""
    products: list[float] = field(default_factory=list)
    """By run, as `matmul_rate` gives it."""

    @property
    def copy(self) -> float:
        return statistics.median(self.copies)

    @property
    def matmul(self) -> float:
        return statistics.median(self.products)

    def to_json(self) -> dict[str, object]:
        return {
            "copy_gb_per_s": self.copy / 1e9, "matmul_gflop_per_s": self.matmul / 1e9,
            "copy_gb_per_s_by_run": [x / 1e9 for x in self.copies],
            "matmul_gflop_per_s_by_run": [x / 1e9 for x in self.products],
        }  # fmt: skip


def copy_rate(clock: Clock, device: torch.device, copied: int = 1 << 30) -> float:
    """Bytes per second, read and written, of a copy far larger than any cache."""
    source, target = (torch.zeros(copied, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * copied / (clock.time(lambda: target.copy_(source), repeats=20).median * 1e-3)


def matmul_rate(clock: Clock, device: torch.device, dtype: torch.dtype, side: int = 8_192) -> float:
    """Floating-point operations per second of a product of square matrices."""
    a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    return 2 * side**3 / (clock.time(lambda: a @ b, repeats=20).median * 1e-3)
