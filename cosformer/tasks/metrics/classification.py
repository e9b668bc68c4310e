"""Accuracy with its interval, and F1, from a table of counts that adds over batches and processes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054


def wilson(right: int, total: int, z: float = Z95) -> tuple[float, float]:
    """The interval of a share by Wilson: it holds near 0 and 1 and for few examples, where right ± z·σ does not."""
    if not 0 <= right <= total or total == 0:
        raise ValueError(f"{right} right of {total}: there is no share of nothing, nor one above 1")
    share, spread = right / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / total + spread / total / 4) / (1 + spread)
    return max(0.0, middle - half) if right else 0.0, min(1.0, middle + half) if right < total else 1.0


@dataclass(slots=True)
class Confusion:
    """counts[true, said]."""

    classes: Sequence[str]
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def __post_init__(self) -> None:
        if self.counts.size == 0:
            self.counts = np.zeros((len(self.classes), len(self.classes)), np.int64)

    def add(self, true: Sequence[int] | NDArray[np.int64], said: Sequence[int] | NDArray[np.int64]) -> None:
        pair = np.asarray(true), np.asarray(said)
        if pair[0].shape != pair[1].shape:
            raise ValueError(f"{pair[0].shape} labels and {pair[1].shape} answers: one for each")
        for name, values in zip(("label", "answer"), pair, strict=True):
            if values.size and not 0 <= values.min() <= values.max() < len(self.classes):
                raise ValueError(
                    f"{name}s from {values.min()} to {values.max()}: there are {len(self.classes)} classes"
                )
        np.add.at(self.counts, pair, 1)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def right(self) -> int:
        return int(np.trace(self.counts))

    def f1(self, positive: int = 1) -> float:
        """2·hits / (said + true) of one class; 0 where it neither is nor is said."""
        hits = int(self.counts[positive, positive])
        both = int(self.counts[positive].sum() + self.counts[:, positive].sum())
        return 2 * hits / both if both else 0.0

    def report(self) -> dict[str, float]:
        """Accuracy and its 95% interval; F1 of the second class where there are two (as QQP is reported)."""
        low, high = wilson(self.right, self.total)
        found = {"accuracy": self.right / self.total, "accuracy_low": low, "accuracy_high": high}
        return found | ({"f1": self.f1()} if len(self.classes) == 2 else {})
