"""Dashed paths that keep away from one another, for many pictures at once.

Everything here is whole numbers (1,024 to a pixel, 256 directions), so that a picture comes out the same on every
machine and does not depend on which others are made with it.

What is promised, and what tells a path from its neighbours: a pixel that holds a point of a path is lit, so are at most
the eight around it. From dash to dash of a path it is at most two pixels; to another path it is three at least.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cosformer.tasks.keyed_random import GOLDEN, Words, key_of, mix

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
BITS = 10
UNIT = 1 << BITS
SIDE = 32
BORDER = 4  # a path may look this far over the edge
WIDE = SIDE + 2 * BORDER
DASH, GAP = 2.0, 1.75
APART = 4  # pixels that hold points of two paths are further from each other: the lit ones around them are then 3 away
SELF_APART = 2  # a path does not run into itself either
STARTS, TRIES, TURNS, SHARPEST = 24, 8, 256, 24
"""Places and directions that are tried; directions there are; the sharpest turn between two dashes."""
_ANGLES = np.arange(TURNS) * (2 * np.pi / TURNS)
_WAYS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1) * UNIT
# Rounded to whole units, so the last bits of a machine's cosine do not matter
LEAPS: Ints = np.round(_WAYS * GAP).astype(np.int64)
"""Over a gap, [directions, 2]."""
LINES: Ints = np.round(_WAYS[:, None] * np.linspace(0, DASH, 5)[:, None]).astype(np.int64)
"""Along a dash, half a pixel apart, [directions, samples, 2]."""
_NEAR = np.arange(-SELF_APART, SELF_APART + 1)
AROUND: Ints = (_NEAR[:, None] * WIDE + _NEAR).reshape(-1)


class Draws:
    """Random numbers for each of many pictures: a key for each, one counter. purpose: tells draws of one key apart."""

    def __init__(self, keys: Words, *purpose: int | str) -> None:
        self.keys, self.used = mix(keys ^ key_of(*purpose)), 0

    def take(self, count: int, below: int, rows: Ints | slice = slice(None)) -> Ints:
        """0 … below − 1, [rows, count]; rows: the pictures that want them."""
        with np.errstate(over="ignore"):
            places = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(self.used)) * GOLDEN
            word = mix(self.keys[rows, None] + places)
        self.used += count
        return ((word >> np.uint64(40)) * np.uint64(below) >> np.uint64(24)).astype(np.int64)


class Walk(NamedTuple):
    """A path in each picture."""

    dashes: Ints
    """From and to, [pictures, dashes, 2, 2], each x, y."""
    steps: Ints
    """Dashes there are: fewer than wanted where the path got stuck."""
    touched: Bools
    """Pixels that hold its points, [pictures, wide, wide]."""


def empty(pictures: int) -> Bools:
    """Where paths may not go, [pictures, wide, wide]: as yet over the edge and on it, which is left for their glow."""
    inside = slice(BORDER + 1, BORDER + SIDE - 1)
    taken = np.ones((pictures, WIDE, WIDE), bool)
    taken[:, inside, inside] = False
    return taken


def keep_away(taken: Bools, walk: Walk) -> Bools:
    """Where paths may not go once there is this one."""
    return taken | _grown(walk.touched, APART)


def walk(taken: Bools, draws: Draws, wanted: Ints) -> Walk:
    """A path of `wanted` dashes in each picture, or as many as there is room for."""
    pictures, longest = len(wanted), int(wanted.max(initial=1))
    dashes = np.zeros((pictures, longest, 2, 2), np.int64)
    steps = np.zeros(pictures, np.int64)
    touched, blocked = np.zeros(taken.size, bool), taken.flatten()
    rows, place = _start(taken, draws)  # from here on only of the pictures whose path goes on
    heading = np.zeros(len(rows), np.int64)
    last = np.zeros((len(rows), 0), np.int64)
    for step in range(longest):
        turns = draws.take(TRIES, 2 * SHARPEST + 1, rows) - SHARPEST if step else draws.take(TRIES, TURNS, rows)
        headings = (heading[:, None] + turns) % TURNS  # [rows, tries]
        starts = place[:, None] + (LEAPS[headings] if step else 0)
        points = starts[:, :, None] + LINES[headings]  # [rows, tries, samples, 2]
        inner = (points >> BITS) + BORDER
        pixels = (rows[:, None, None] * WIDE + inner[..., 1]) * WIDE + inner[..., 0]
        free: Bools = ~np.any(blocked[pixels], axis=-1)
        going = np.flatnonzero(free.any(-1) & (step < wanted[rows]))
        chosen = free[going].argmax(-1)
        rows, heading, last = rows[going], headings[going, chosen], last[going]
        line, here = points[going, chosen], pixels[going, chosen]
        dashes[rows, step, 0], dashes[rows, step, 1] = line[:, 0], line[:, -1]
        steps[rows] += 1
        touched[here] = True
        blocked[last[:, ::2, None] + AROUND] = True  # the dash before this one is where it must not come again
        place, last = line[:, -1], here
    return Walk(dashes, steps, touched.reshape(taken.shape))


def _start(taken: Bools, draws: Draws) -> tuple[Ints, Ints]:
    """The pictures where a free pixel was found, and its middle, [rows, 2]."""
    x, y = draws.take(STARTS, SIDE), draws.take(STARTS, SIDE)
    free = ~taken[np.arange(len(taken))[:, None], y + BORDER, x + BORDER]
    rows, first = np.flatnonzero(free.any(-1)), free.argmax(-1)
    first = first[rows]
    return rows, np.stack([x[rows, first], y[rows, first]], -1) * UNIT + UNIT // 2


def _grown(mask: Bools, reach: int) -> Bools:
    """Everything at most `reach` pixels away, sideways, up, down or both."""
    for axis in (1, 2):
        grown = mask.copy()
        for shift in range(1, reach + 1):
            ahead, back = [slice(None)] * 3, [slice(None)] * 3
            ahead[axis], back[axis] = slice(shift, None), slice(None, -shift)
            grown[tuple(ahead)] |= mask[tuple(back)]
            grown[tuple(back)] |= mask[tuple(ahead)]
        mask = grown
    return mask
