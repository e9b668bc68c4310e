"""Pathfinder: are the two dots the ends of one dashed path? Pictures of 32 × 32, generated like the published ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cosformer.tasks.keyed_random import GOLDEN, Words, key_of, mix
from cosformer.tasks.lra.drawing import LONG, SHORT, Pictures, draw_dashes, draw_dots
from cosformer.tasks.lra.processes import Made
from cosformer.tasks.lra.source import GeneratedSource
from cosformer.tasks.lra.vocabularies import PixelEncoder, picture_text, pixel_tokenizer
from cosformer.tasks.lra.walks import (
    APART,
    BITS,
    BORDER,
    SIDE,
    UNIT,
    WAYS,
    WIDE,
    Draws,
    Ints,
    Walk,
    Walker,
    around,
    empty,
    keep_away,
    walk,
)

ATTEMPTS = 5_000  # one in a hundred finds room
AT_ONCE = 2_000
DASHES = 14  # of the two long paths
BEGIN, NEIGHBOUR = 4, 7  # pixels: the first begins in so wide a square in the middle, the second so far from there
DISTRACTORS, SHORTER = 5, 4
NEAREST = 5 * UNIT  # dots are further from each other


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureMaker:
    """Pictures and their labels, each by (seed, split, index).

    Every picture has two long paths, which begin near each other in the middle, and distractors. The label is a coin.
    One dot is where one of the two begins; the other is where the same one ends, or, if the answer is no, where the
    other ends. Nothing but the dots differs between yes and no.
    """

    seed: int = 0

    def make(self, split: str, start: int, stop: int) -> Made:
        pictures, labels = self.pictures(split, start, stop)
        return [(picture_text(picture), int(label)) for picture, label in zip(pictures, labels, strict=True)]

    def pictures(self, split: str, start: int, stop: int) -> tuple[Pictures, Ints]:
        """[count, 32, 32] and [count]."""
        pictures = np.zeros((stop - start, SIDE, SIDE), np.uint8)
        labels = np.zeros(stop - start, np.int64)
        missing, attempt = np.arange(start, stop), 0
        while len(missing):
            if attempt >= ATTEMPTS:
                raise RuntimeError(f"lra-pathfinder: no room for pictures {split}[{missing[:4]}] in {attempt} attempts")
            # Of few pictures several attempts at once; which is taken, the first that has room, does not depend on it
            several = max(1, AT_ONCE // len(missing))
            bases = np.array([key_of("lra-pathfinder", self.seed, split, attempt + one) for one in range(several)])
            with np.errstate(over="ignore"):
                keys = mix(bases + (missing[:, None].astype(np.uint64) + np.uint64(1)) * GOLDEN).reshape(-1)
            paths = _long_paths(keys)
            found, first = np.unique(paths.rows // several, return_index=True)
            paths = paths.part(first)
            pictures[missing[found] - start], labels[missing[found] - start] = _drawn(keys[paths.rows], paths)
            missing, attempt = np.delete(missing, found), attempt + several
        return pictures, labels


class LongPaths(NamedTuple):
    """The two long paths of the pictures (rows, in order) that have room for them."""

    rows: Ints
    one: Walk
    two: Walk

    def part(self, which: Ints) -> "LongPaths":
        return LongPaths(self.rows[which], self.one.part(which), self.two.part(which))

    def begin(self) -> Ints:
        """Where the two begin, [rows, 2, 2]: paths, then x, y."""
        return np.stack([path.dashes[:, 0, 0] for path in (self.one, self.two)], 1)

    def end(self) -> Ints:
        return np.stack([path.dashes[:, -1, 1] for path in (self.one, self.two)], 1)


def _long_paths(keys: Words) -> LongPaths:
    """Both at the same time, a dash of each in turn."""
    draws = Draws(keys, "begin")
    first = draws.take(2, BEGIN * UNIT) + (SIDE - BEGIN) * UNIT // 2
    second = first + np.round(WAYS * NEIGHBOUR).astype(np.int64)[draws.take(1, len(WAYS))[:, 0]]
    walkers = [Walker(empty(len(keys)), Draws(keys, "path", number), DASHES) for number in range(2)]
    for walker, place, other in zip(walkers, (first, second), (second, first), strict=True):
        walker.place[:] = place
        inner = (other >> BITS) + BORDER
        start = (np.arange(len(keys)) * WIDE + inner[:, 1]) * WIDE + inner[:, 0]
        walker.blocked[start[:, None] + around(APART)] = True
    rows = np.arange(len(keys))
    for _ in range(DASHES):
        for walker, other in (walkers, walkers[::-1]):
            rows, here = walker.step(rows)
            other.blocked[here[:, :, None] + around(APART)] = True
    found = LongPaths(np.arange(len(keys)), walkers[0].walk(), walkers[1].walk()).part(rows)
    apart = found.begin()[:, :, None] - found.end()[:, None]  # [rows, 2, 2, 2]: from each beginning to each end
    return found.part(np.flatnonzero(((apart**2).sum(-1) > NEAREST**2).all((1, 2))))


def _drawn(keys: Words, paths: LongPaths) -> tuple[Pictures, Ints]:
    """The pictures and their labels."""
    pictures = np.zeros((len(keys), SIDE, SIDE), np.uint8)
    if not len(keys):
        return pictures, np.zeros(0, np.int64)
    taken = empty(len(keys))
    for path in (paths.one, paths.two):
        draw_dashes(pictures, path, LONG)
        taken = keep_away(taken, path)
    for number in range(DISTRACTORS):
        path = walk(taken, Draws(keys, "distractor", number), SHORTER)
        draw_dashes(pictures, path, SHORT)
        taken = keep_away(taken, path)
    draws, rows = Draws(keys, "label"), np.arange(len(keys))
    labels, one = draws.take(1, 2)[:, 0], draws.take(1, 2)[:, 0]
    other = np.where(labels == 1, one, 1 - one)
    draw_dots(pictures, np.stack([paths.begin()[rows, one], paths.end()[rows, other]], 1))
    return pictures, labels


class Pathfinder(GeneratedSource):
    """Two classes. Options: see GeneratedSource."""

    name = "lra-pathfinder"
    classes = ("apart", "joined")
    encoder = PixelEncoder()
    tokenizer = staticmethod(pixel_tokenizer)
    length, even = SIDE * SIDE, True
    version, block, text_bytes = 2, 1_000, 1_086

    def __init__(
        self, path: str | Path | None = None, *, seed: int = 0,
        sizes: tuple[int, int, int] = (160_000, 20_000, 20_000), workers: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(path, seed, sizes, workers)
        self.maker = PictureMaker(seed=seed)
