"""Attention weights as small PNG files inside the page: one colour, as opaque as the weight is large."""

import base64
import struct
import zlib

import torch
from torch import Tensor

COLOUR = (47, 99, 235)
DARKEST, GAMMA = 8.0, 0.6


def map_image(weights: Tensor, *, causal: bool) -> str:
    """A data address of a picture with a pixel for each weight [T, T]: opaque where it is DARKEST times the mean.

    The mean is over what a row can see, so a row that looks everywhere alike is pale throughout, early or late.
    """
    weights = weights.clamp(min=0)
    seen = torch.arange(1, len(weights) + 1)[:, None] if causal else len(weights)
    times = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30) * seen
    levels = ((times / DARKEST).clamp(max=1) ** GAMMA * 255).round().to(torch.uint8)
    return "data:image/png;base64," + base64.b64encode(png(levels)).decode()


def png(levels: Tensor) -> bytes:
    """uint8 [T, S] as a PNG whose palette is one colour in 256 opacities."""
    height, width = levels.shape
    rows = b"".join(b"\0" + bytes(row) for row in levels.tolist())
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(name, content)
        for name, content in (
            (b"IHDR", header), (b"PLTE", bytes(COLOUR) * 256), (b"tRNS", bytes(range(256))),
            (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""),
        )
    )  # fmt: skip


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
