"""Random directions for features: drawn from a seed, drawn again while training, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

Draw = Callable[[torch.Generator], Tensor]


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**16:
        raise ValueError(f"seed={seed}: use a whole number from 0 to 65,535")


def gaussian(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, device="cpu")


def orthogonal(generator: torch.Generator, features: int, width: int) -> Tensor:
    """[features, width]: rows as long as Gaussian ones, orthogonal to each other in blocks of `width`."""
    blocks = [_rotation(generator, width)[: features - i] for i in range(0, features, width)]
    lengths = gaussian(generator, features, width).norm(dim=1, keepdim=True)
    return torch.cat(blocks) * lengths


def _rotation(generator: torch.Generator, width: int) -> Tensor:
    q, r = torch.linalg.qr(gaussian(generator, width, width))
    return (q * r.diagonal().sign()).mT  # as LAPACK leaves it, q prefers a side: estimates would be biased


class DrawnFeatures(nn.Module):
    """What `draw` gave, saved with the model; drawn again after every `redraw` training passes (0: never).

    The draw depends on seed, place and count alone: every process has the same, and a run that resumes goes on with
    what it would have drawn. A compiled model keeps its features: call `redraw_features(model)` between steps.
    """

    projection: Tensor
    calls: Tensor

    def __init__(self, draw: Draw, shape: tuple[int, ...], *, redraw: int, seed: int, layer: int | str) -> None:
        super().__init__()
        self.draw, self.redraw, self.place = draw, redraw, f"{seed} {layer}"
        self.register_buffer("projection", torch.empty(shape))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self._known: int | None = None  # `calls`, where it was read already: to read it waits for the device
        if not self.projection.is_meta:
            self._fill(0)

    def forward(self) -> Tensor:
        """The directions to use now; a copy where they may be drawn again before backward has read them."""
        if not (self.training and self.redraw and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            return self.projection
        if torch._C._current_graph_task_id() == -1:  # else a checkpointed block runs again inside backward
            self.count()
        return self.projection.clone()

    def count(self) -> None:
        """One more training pass; draws where it is time."""
        if self._known is None:
            self._known = int(self.calls)
        if self._known and self._known % self.redraw == 0:
            self._fill(self._known // self.redraw)
        self._known += 1
        self.calls.add_(1)

    def renew(self) -> None:
        """Draws now, whatever the count."""
        step = max(self.redraw, 1)
        self._known = (int(self.calls) // step + 1) * step
        self._fill(self._known // step)
        self.calls.fill_(self._known)

    @torch.no_grad()
    def _fill(self, number: int) -> None:
        digest = hashlib.blake2b(f"{self.place} {number}".encode(), digest_size=4).digest()
        # torch's generator on the CPU keeps 32 bits of a seed, the lowest
        self.projection.copy_(self.draw(torch.Generator().manual_seed(int.from_bytes(digest))))

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._known = None

    def extra_repr(self) -> str:
        return f"{list(self.projection.shape)}, redraw={self.redraw}"


def redraw_features(model: nn.Module) -> int:
    """Draws everything random in a model again: features, hashes, noise; how many draws that were."""
    drawn = [module for module in model.modules() if isinstance(module, DrawnFeatures)]
    for module in drawn:
        module.renew()
    return len(drawn)
