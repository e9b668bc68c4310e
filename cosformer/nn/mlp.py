"""The two layers between attentions: plain with an activation, or gated with SiLU."""

import functools
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.nn.joined import joined

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),  # GPT-2's
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": F.silu,  # gated
}


class MLP(nn.Module):
    """down(act(up(x))), or down(silu(gate(x))·up(x)) for kind="swiglu"."""

    def __init__(self, width: int, inner: int, *, kind: str = "gelu", bias: bool = True) -> None:
        super().__init__()
        self.kind = kind
        self.gate_proj = nn.Linear(width, inner, bias=bias) if kind == "swiglu" else None
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        act = ACTIVATIONS[self.kind]
        if self.gate_proj is None:
            return self.down_proj(act(self.up_proj(x)))
        gate, up = joined(x, (self.gate_proj, self.up_proj))
        return self.down_proj(act(gate) * up)

    def extra_repr(self) -> str:
        return f"kind={self.kind!r}"
