"""What a model may add for the place of a token, beside the cosine of the attention itself."""

import math

import torch
from torch import Tensor

from cosformer.nn.compiling import compiled_to_run


def sinusoidal(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[..., width] for whole-number positions [...]: sines of width/2 wavelengths from 2π to 20,000π, then cosines."""
    half = (width + 1) // 2
    speeds = torch.exp(torch.arange(half, device=positions.device) * (-math.log(10_000) / max(half - 1, 1)))
    angles = positions[..., None].float() * speeds  # fp32: bf16 has too few digits for positions above 256
    return torch.cat([angles.sin(), angles.cos()], -1)[..., :width].to(dtype)


def rotary_tables(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and ∓sin [..., T, width] by which `rotate` turns vectors at whole-number positions [..., T]."""
    if compiled_to_run():
        # Left to the compiler, powers, sines and cosines would be worked out again for every head of every block
        return torch.ops.cosformer.rotary_tables(positions, width, base, dtype)
    return _rotary_tables(positions, width, base, dtype)


def _rotary_tables(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    speeds = base ** (torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / -width)
    angles = positions[..., None].float() * speeds
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


_tables_op = torch.library.custom_op("cosformer::rotary_tables", _rotary_tables, mutates_args=())


@_tables_op.register_fake
def _(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (*positions.shape, width)
    return positions.new_empty(shape, dtype=dtype), positions.new_empty(shape, dtype=dtype)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, H, T, K] with its pairs (i, i + K/2) turned by their angle; tables [B or 1, T, K]."""
    cos, sin = (table[:, None] for table in tables)
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin  # a compiler reads a roll where it is used; cat, it may write
