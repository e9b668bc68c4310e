"""Draws dashes and dots into many small grey pictures at once."""

import numpy as np
from numpy.typing import NDArray

from cosformer.tasks.lra.walks import SIDE, UNIT, Ints, Walk

Pictures = NDArray[np.uint8]
REACH = 5  # pixels of a side that a dash can touch: its own three and one around them
LONG, SHORT = 191, 255
"""How bright the middle of a dash is, of the two long paths and of the others: as published. Dots are half white."""
DOT = np.array([[74, 127, 74], [127, 127, 127], [74, 127, 74]], np.uint8)
"""A disc of radius 1.5 with soft edges: no dash fills a pixel and its four neighbours."""


def draw_dashes(pictures: Pictures, walk: Walk, brightness: int) -> None:
    """A pixel is as bright as a dash is near its middle: black from 1 pixel on."""
    which, step = np.nonzero(np.arange(walk.dashes.shape[1]) < walk.steps[:, None])
    ends = walk.dashes[which, step]  # [dashes, 2, 2]
    corner = ends.min(1) // UNIT - 1  # [dashes, 2]
    grid = np.stack(np.meshgrid(np.arange(REACH), np.arange(REACH), indexing="xy"), -1).reshape(-1, 2)
    pixels = corner[:, None] + grid  # [dashes, pixels, 2], each x, y
    start = ends[:, None, 0]
    away = (pixels * UNIT + UNIT // 2 - start).astype(np.float64)
    along = (ends[:, None, 1] - start).astype(np.float64)
    share = np.clip((away * along).sum(-1) / (along * along).sum(-1), 0, 1)
    near = np.sqrt(((away - share[..., None] * along) ** 2).sum(-1)) / UNIT  # [dashes, pixels]
    grey = np.floor(brightness * np.clip(1 - near, 0, 1) + 0.5).astype(np.uint8)
    x, y = pixels[..., 0], pixels[..., 1]
    seen = (grey > 0) & (x >= 0) & (x < SIDE) & (y >= 0) & (y < SIDE)
    rows = np.broadcast_to(which[:, None], seen.shape)
    np.maximum.at(pictures, (rows[seen], y[seen], x[seen]), grey[seen])


def draw_dots(pictures: Pictures, places: Ints) -> None:
    """places: [pictures, dots, 2], each x, y; the middle of the dot is the pixel that holds it."""
    rows = np.arange(len(pictures))[:, None]
    x, y = places[..., 0] // UNIT, places[..., 1] // UNIT
    for dy in range(3):
        for dx in range(3):
            at = (rows, y + dy - 1, x + dx - 1)
            pictures[at] = np.maximum(pictures[at], DOT[dy, dx])
