"""Pathfinder: are the two dots the ends of one dashed path? Pictures of 32 × 32, generated."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cosformer.tasks.keyed_random import GOLDEN, Words, key_of, mix
from cosformer.tasks.lra.drawing import Pictures, draw_dashes, draw_dots
from cosformer.tasks.lra.processes import Made
from cosformer.tasks.lra.source import GeneratedSource
from cosformer.tasks.lra.vocabularies import PixelEncoder, picture_text, pixel_tokenizer
from cosformer.tasks.lra.walks import SIDE, UNIT, Bools, Draws, Ints, Walk, empty, keep_away, walk

ATTEMPTS = 500
FEWEST, MOST = 7, 9  # dashes of the two long paths, as many in both
SHORTEST, LONGEST, DISTRACTORS = 2, 4, 6
NEAREST = 6 * UNIT  # the dots are at least this far apart
ALIKE = (
    5 * UNIT // 2
)  # their distance, and that of their middle from the picture's, differ so little between yes and no
AGAIN = 8  # a long path that got stuck is begun again so often
ACROSS = np.array([(0, 2), (0, 3), (1, 2), (1, 3)])  # an end of one path and one of the other


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureMaker:
    """Pictures and their labels, each by (seed, split, index).

    Every picture has two long paths of as many dashes, and distractors. The label is a coin. Yes: the dots are the ends
    of one of the two. No: an end of each, two that are about as far from each other, with their middle about as far
    from the picture's, so that the dots alone give little away. Nothing but the dots differs between yes and no.
    """

    seed: int = 0

    def make(self, split: str, start: int, stop: int) -> Made:
        pictures, labels = self.pictures(split, start, stop)
        return [(picture_text(picture), int(label)) for picture, label in zip(pictures, labels, strict=True)]

    def pictures(self, split: str, start: int, stop: int) -> tuple[Pictures, Ints]:
        """[count, 32, 32] and [count]."""
        pictures = np.zeros((stop - start, SIDE, SIDE), np.uint8)
        labels = np.zeros(stop - start, np.int64)
        missing = np.arange(start, stop)
        for attempt in range(ATTEMPTS):
            if not len(missing):
                return pictures, labels
            base = key_of("lra-pathfinder", self.seed, split, attempt)
            with np.errstate(over="ignore"):
                keys = mix(base + (missing.astype(np.uint64) + np.uint64(1)) * GOLDEN)
            paths = _long_paths(keys)
            done = missing[paths.rows] - start
            pictures[done], labels[done] = _drawn(keys[paths.rows], paths)
            missing = np.delete(missing, paths.rows)
        raise RuntimeError(f"lra-pathfinder: pictures {missing[:4]} of {split} found no room in {ATTEMPTS} attempts")


class LongPaths(NamedTuple):
    """The two long paths of the pictures (rows) that have room for them."""

    rows: Ints
    one: Walk
    two: Walk
    ends: Ints
    """[rows, 4, 2]: of the first, of the second, each x, y."""
    joined: Ints
    """Which two ends have a dot if the answer is yes, [rows, 2]."""
    apart: Ints
    """And if it is no."""


def _long_paths(keys: Words) -> LongPaths:
    rows, taken = np.arange(len(keys)), empty(len(keys))
    wanted = FEWEST + Draws(keys, "dashes").take(1, MOST - FEWEST + 1)[:, 0]
    found: list[Walk] = []
    for number in range(2):
        walked = _long_path(keys[rows], taken, wanted[rows], number)
        kept = walked.steps == wanted[rows]
        found = [_part(one, kept) for one in (*found, walked)]
        rows, taken = rows[kept], keep_away(taken[kept], found[-1])
    ends = np.concatenate([_ends(one, wanted[rows]) for one in found], 1)  # [rows, 4, 2]
    path = Draws(keys[rows], "path").take(1, 2)
    joined = np.concatenate([2 * path, 2 * path + 1], 1)
    across = np.broadcast_to(ACROSS, (len(rows), *ACROSS.shape))
    own = _outline(ends, joined[:, None])
    gap = np.abs(_outline(ends, across) - own).max(-1)  # [rows, 4]
    nearest = gap.argmin(1)
    good = (own[:, 0, 0] >= NEAREST) & (gap.min(1) <= ALIKE)
    return LongPaths(rows[good], _part(found[0], good), _part(found[1], good), ends[good], joined[good],
                     ACROSS[nearest][good])  # fmt: skip


def _long_path(keys: Words, taken: Bools, wanted: Ints, number: int) -> Walk:
    """A path in each picture, begun again a few times where it got stuck."""
    found = walk(taken, Draws(keys, "path", number, 0), wanted)
    for again in range(1, AGAIN):
        stuck = np.flatnonzero(found.steps < wanted)
        if not len(stuck):
            break
        other = walk(taken[stuck], Draws(keys[stuck], "path", number, again), wanted[stuck])
        longest = other.dashes.shape[1]
        found.dashes[stuck, :longest], found.steps[stuck], found.touched[stuck] = other
    return found


def _part(found: Walk, rows: Bools) -> Walk:
    return Walk(found.dashes[rows], found.steps[rows], found.touched[rows])


def _drawn(keys: Words, paths: LongPaths) -> tuple[Pictures, Ints]:
    """The pictures and their labels."""
    pictures = np.zeros((len(keys), SIDE, SIDE), np.uint8)
    if not len(keys):
        return pictures, np.zeros(0, np.int64)
    taken = empty(len(keys))
    for path in (paths.one, paths.two):
        draw_dashes(pictures, path)
        taken = keep_away(taken, path)
    for number in range(DISTRACTORS):
        draws = Draws(keys, "distractor", number)
        path = walk(taken, draws, SHORTEST + draws.take(1, LONGEST - SHORTEST + 1)[:, 0])
        draw_dashes(pictures, path)
        taken = keep_away(taken, path)
    labels = Draws(keys, "label").take(1, 2)[:, 0]
    chosen = np.where(labels[:, None] == 1, paths.joined, paths.apart)
    draw_dots(pictures, paths.ends[np.arange(len(keys))[:, None], chosen])
    return pictures, labels


def _ends(walk: Walk, wanted: Ints) -> Ints:
    rows = np.arange(len(wanted))
    return np.stack([walk.dashes[rows, 0, 0], walk.dashes[rows, wanted - 1, 1]], 1)


def _outline(ends: Ints, pairs: Ints) -> NDArray[np.float64]:
    """How far the two ends of a pair are from each other, and how far their middle is from that of the picture.

    ends [rows, 4, 2], pairs [rows, n, 2], answer [rows, n, 2].
    """
    rows = np.arange(len(ends))[:, None]
    one, other = ends[rows, pairs[..., 0]], ends[rows, pairs[..., 1]]
    middle = (one + other - SIDE * UNIT) // 2
    return np.sqrt(np.stack([((one - other) ** 2).sum(-1), (middle**2).sum(-1)], -1))


class Pathfinder(GeneratedSource):
    """Two classes. Options: see GeneratedSource."""

    name = "lra-pathfinder"
    classes = ("apart", "joined")
    encoder = PixelEncoder()
    tokenizer = staticmethod(pixel_tokenizer)
    length, even = SIDE * SIDE, True
    version, block, text_bytes = 1, 1_000, 1_107

    def __init__(
        self, path: str | Path | None = None, *, seed: int = 0,
        sizes: tuple[int, int, int] = (160_000, 20_000, 20_000), workers: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(path, seed, sizes, workers)
        self.maker = PictureMaker(seed=seed)
