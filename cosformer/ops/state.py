"""The recurrent state: everything the past contributes to the future, in a size that never grows."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cosformer.ops.features import angle, turn


@dataclass(slots=True, kw_only=True)
class AttentionState:
    """h = Σ_s e^{iθ(t − s)} φ(k[s]) ⊗ [v[s], 1], seen from t, the last position consumed; θ = π/(2M).

    Phases are relative: no angle grows, and a prefix, a chunk or another process's share are the same kind of object,
    turned by the distance and added. Sums are fp32 (fp64 for fp64 inputs).
    """

    sums: Tensor
    """[B, Hkv, 2, K, V]: real and imaginary part of Σ e^{iθ(t−s)} φ(k) ⊗ v."""
    norm: Tensor
    """[B, Hkv, 2, K]: the same with 1 for v."""
    length: int | Tensor
    """Positions consumed; [B] int64 on the CPU where rows differ (packed sequences)."""
    horizon: int
    """M, for which the phases were made: a state cannot change its horizon."""

    @classmethod
    def zeros(
        cls, batch: int, heads: int, key_width: int, value_width: int, *, horizon: int,
        dtype: torch.dtype = torch.float32, device: torch.device | str | None = None,
    ) -> "AttentionState":  # fmt: skip
        """The state before the first token. `heads` counts key/value heads."""
        shape = (batch, heads, 2, key_width)
        return cls(
            sums=torch.zeros(*shape, value_width, dtype=dtype, device=device),
            norm=torch.zeros(shape, dtype=dtype, device=device), length=0, horizon=horizon,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes + self.norm.nbytes

    def turned(self, steps: int | Tensor) -> "AttentionState":
        """The same past seen `steps` positions later, as if that many masked tokens had followed."""
        if isinstance(steps, float) or (isinstance(steps, Tensor) and steps.is_floating_point()):
            raise TypeError(f"steps is {getattr(steps, 'dtype', 'float')}: positions are whole numbers; pass integers")
        theta = angle(self.horizon)
        return replace(
            self, sums=turn(self.sums, steps, theta), norm=turn(self.norm, steps, theta), length=self.length + steps
        )

    def __add__(self, suffix: "AttentionState") -> "AttentionState":
        """The state of this sequence followed by the one `suffix` was made from (alone, from zeros)."""
        if not isinstance(suffix, AttentionState):
            return NotImplemented
        if suffix.horizon != self.horizon:
            raise ValueError(
                f"states of horizon {self.horizon} and {suffix.horizon} do not add: their phases turn at different "
                "speeds; make both with one horizon"
            )
        if suffix.sums.shape != self.sums.shape:
            raise ValueError(
                f"states of shape {tuple(self.sums.shape)} and {tuple(suffix.sums.shape)} do not add: "
                "[B, Hkv, 2, K, V] must agree"
            )
        moved = self.turned(suffix.length)
        return replace(moved, sums=moved.sums + suffix.sums, norm=moved.norm + suffix.norm)

    def to(self, device: torch.device | str) -> "AttentionState":
        return replace(self, sums=self.sums.to(device), norm=self.norm.to(device))

    def clone(self) -> "AttentionState":
        length = self.length.clone() if isinstance(self.length, Tensor) else self.length
        return replace(self, sums=self.sums.clone(), norm=self.norm.clone(), length=length)

    def detach(self) -> "AttentionState":
        return replace(self, sums=self.sums.detach(), norm=self.norm.detach())

    def select(self, rows: Tensor) -> "AttentionState":
        """The given batch rows, in that order and as often as named: beams, or one prefix for many continuations."""
        length = self.length[rows.cpu()] if isinstance(self.length, Tensor) else self.length
        return replace(self, sums=self.sums[rows], norm=self.norm[rows], length=length)

    def to_tensors(self) -> dict[str, Tensor]:
        """Plain tensors for `safetensors.torch.save_file`; `from_tensors` takes them back."""
        return {
            "sums": self.sums.detach().contiguous(), "norm": self.norm.detach().contiguous(),
            "length": torch.as_tensor(self.length, dtype=torch.int64), "horizon": torch.tensor(self.horizon),
        }  # fmt: skip

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "AttentionState":
        missing = {"sums", "norm", "length", "horizon"} - tensors.keys()
        if missing:
            raise ValueError(f"not a saved AttentionState: {', '.join(sorted(missing))} missing; got {sorted(tensors)}")
        sums, norm, length = tensors["sums"], tensors["norm"], tensors["length"]
        if sums.dim() != 5 or sums.shape[2] != 2 or norm.shape != sums.shape[:4]:
            raise ValueError(
                f"not a saved AttentionState: sums {tuple(sums.shape)} and norm {tuple(norm.shape)}; "
                "expected [B, Hkv, 2, K, V] and [B, Hkv, 2, K]"
            )
        horizon = int(tensors["horizon"])
        return cls(sums=sums, norm=norm, length=length if length.dim() else int(length), horizon=horizon)
