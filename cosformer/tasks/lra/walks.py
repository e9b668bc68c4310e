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
PIXELS = WIDE * WIDE
DASH, GAP = 2.0, 1.75
APART = 4  # pixels that hold points of two paths are further from each other: the lit ones around them are then 3 away
SELF_APART = 2  # a path does not run into itself either
STARTS, TRIES, TURNS = 24, 12, 256
"""Places and directions that are tried; directions there are."""
_ANGLES = np.arange(TURNS) * (2 * np.pi / TURNS)
WAYS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1) * UNIT
# Rounded to whole units, so the last bits of a machine's cosine do not matter
LEAPS: Ints = np.round(WAYS * GAP).astype(np.int64)
"""Over a gap, [directions, 2]."""
LINES: Ints = np.round(WAYS[:, None] * np.linspace(0, DASH, 5)[:, None]).astype(np.int64)
"""Along a dash, half a pixel apart, [directions, samples, 2]."""
SHARPEST = TURNS // 4
_TURNS: Ints = np.cumsum(np.round(np.cos(_ANGLES[: 2 * SHARPEST] - np.pi / 2) ** 2 * 65_536).astype(np.int64))
"""How likely a turn of at most so much is: cos² of it, as in the published pictures."""


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

    def part(self, which: Ints) -> "Walk":
        return Walk(self.dashes[which], self.steps[which], self.touched[which])


def empty(pictures: int) -> Bools:
    """Where paths may not go, [pictures, wide, wide]: as yet over the edge and on it, which is left for their glow."""
    inside = slice(BORDER + 1, BORDER + SIDE - 1)
    taken = np.ones((pictures, WIDE, WIDE), bool)
    taken[:, inside, inside] = False
    return taken


def keep_away(taken: Bools, walk: Walk) -> Bools:
    """Where paths may not go once there is this one."""
    return taken | _grown(walk.touched, APART)


def around(reach: int) -> Ints:
    """From a pixel to all that are at most so far, sideways, up, down or both."""
    near = np.arange(-reach, reach + 1)
    return (near[:, None] * WIDE + near).reshape(-1)


class Walker:
    """One path in each picture on its way, dash by dash; only pictures whose paths all go on are looked at."""

    def __init__(self, blocked: Bools, draws: Draws, longest: int) -> None:
        """blocked [pictures, wide, wide]: where it may not go; changed by its steps."""
        pictures = len(blocked)
        self.blocked, self.draws = blocked.reshape(-1), draws
        self.dashes = np.zeros((pictures, longest, 2, 2), np.int64)
        self.steps = np.zeros(pictures, np.int64)
        self.touched = np.zeros(pictures * PIXELS, bool)
        self.place, self.heading = np.zeros((pictures, 2), np.int64), np.zeros(pictures, np.int64)
        self.last: Ints = np.zeros((pictures, LINES.shape[1]), np.int64)

    def step(self, rows: Ints) -> tuple[Ints, Ints]:
        """A dash more in these pictures, all with as many so far: those where there was room, and its pixels there."""
        number = int(self.steps[rows[0]]) if len(rows) else 0
        if number:
            turns = np.searchsorted(_TURNS, self.draws.take(TRIES, int(_TURNS[-1]), rows), "right") - SHARPEST
        else:
            turns = self.draws.take(TRIES, TURNS, rows)
        headings = (self.heading[rows, None] + turns) % TURNS  # [rows, tries]
        starts = self.place[rows, None] + (LEAPS[headings] if number else 0)
        points = starts[:, :, None] + LINES[headings]  # [rows, tries, samples, 2]
        inner = (points >> BITS) + BORDER
        pixels = (rows[:, None, None] * WIDE + inner[..., 1]) * WIDE + inner[..., 0]
        free: Bools = ~np.any(self.blocked[pixels], axis=-1)
        going = np.flatnonzero(free.any(-1))
        chosen = free[going].argmax(-1)
        rows, line, here = rows[going], points[going, chosen], pixels[going, chosen]
        self.dashes[rows, number, 0], self.dashes[rows, number, 1] = line[:, 0], line[:, -1]
        self.steps[rows] += 1
        self.touched[here] = True
        if number:  # the dash before this one is where it must not come again
            self.blocked[self.last[rows, ::2, None] + around(SELF_APART)] = True
        self.place[rows], self.heading[rows], self.last[rows] = line[:, -1], headings[going, chosen], here
        return rows, here

    def walk(self) -> Walk:
        return Walk(self.dashes, self.steps, self.touched.reshape(-1, WIDE, WIDE))


def walk(taken: Bools, draws: Draws, longest: int) -> Walk:
    """A path from anywhere in each picture, of so many dashes or as many as there is room for."""
    walker = Walker(taken.copy(), draws, longest)
    x, y = draws.take(STARTS, SIDE), draws.take(STARTS, SIDE)
    free = ~taken[np.arange(len(taken))[:, None], y + BORDER, x + BORDER]
    rows, first = np.flatnonzero(free.any(-1)), free.argmax(-1)
    first = first[rows]
    walker.place[rows] = np.stack([x[rows, first], y[rows, first]], -1) * UNIT + UNIT // 2
    for _ in range(longest):
        rows, _ = walker.step(rows)
    return walker.walk()


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
