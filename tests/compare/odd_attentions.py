"""Attentions that go wrong in one way each, from 64 tokens on; measured by the sweep of test_sweep.py."""

import os
import signal
import time
from typing import Any

import torch
from torch import Tensor

from cosformer.models import register_attention
from cosformer.models.kinds import AttentionKind
from cosformer.models.layout import Layout


class OddKind(AttentionKind):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Any | None) -> Tensor:
        if q.shape[2] >= 64:
            return self.go_wrong(q, v)
        return v * 1.0 + (q + k).sum() * 0

    def go_wrong(self, q: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


class Hungry(OddKind):
    """Asks for more than the process may have."""

    def go_wrong(self, q: Tensor, v: Tensor) -> Tensor:
        return v + torch.ones(1 << 40, dtype=torch.uint8).sum()


class Exhausted(OddKind):
    def go_wrong(self, q: Tensor, v: Tensor) -> Tensor:
        raise MemoryError


class Dying(OddKind):
    """Goes as one goes whom the system ends."""

    def go_wrong(self, q: Tensor, v: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return v


class Crawling(OddKind):
    def go_wrong(self, q: Tensor, v: Tensor) -> Tensor:
        time.sleep(0.8)
        return v * 1.0 + q.sum() * 0


class Faulty(OddKind):
    def go_wrong(self, q: Tensor, v: Tensor) -> Tensor:
        raise RuntimeError("boom")


class Wrong(OddKind):
    def go_wrong(self, q: Tensor, v: Tensor) -> Tensor:
        return v / 0 * q.sum()


class LookingBack(OddKind):
    """Never wrong, never both ways."""

    def go_wrong(self, q: Tensor, v: Tensor) -> Tensor:
        return v * 1.0 + q.sum() * 0

    @classmethod
    def check(cls, config: Any) -> None:
        if not config.causal:
            raise ValueError("looking_back cannot look ahead: use it in a decoder")


KINDS = {
    "hungry": Hungry, "exhausted": Exhausted, "dying": Dying, "crawling": Crawling, "faulty": Faulty,
    "wrong": Wrong, "looking_back": LookingBack,
}  # fmt: skip
for name, kind in KINDS.items():
    register_attention(name, kind)
