"""What is held out from training: by hash, and by a rule where hashing leaves a split without anything."""

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

from cosformer.tasks.sources.source import TEST, TRAIN, VALID, hash_place, split_by_hash

KEPT = 3  # of the smallest hashes of a split: as many as there are splits to fill

Moved = Mapping[str, str]
"""The few files or rows that go to another split than their hash says."""


def moved_units(keys: Iterable[str], shares: Sequence[float]) -> Moved | None:
    """None is moved where no split is empty; the keys are then not read further. None: too few for all splits.

    An empty split gets what has the smallest hash of train, so that the choice is the same every time.
    """
    wanted = [split for split, share in zip((VALID, TEST), shares, strict=True) if share > 0]
    smallest: dict[str, list[tuple[float, str]]] = {split: [] for split in (TRAIN, *wanted)}
    for key in keys:
        least, unit = smallest[split_by_hash(key, shares)], (hash_place(key), key)
        if unit not in least:
            insort(least, unit)
            del least[KEPT:]
        if all(smallest.values()):
            return {}
    moved: dict[str, str] = {}
    for split in (*wanted, TRAIN):
        if not smallest[split]:
            giver = max(smallest, key=lambda s: (min(2, len(smallest[s])), s == TRAIN))  # train, if it has two
            if len(smallest[giver]) < 2:
                return None
            unit = smallest[giver].pop(0)
            smallest[split].append(unit)
            moved[unit[1]] = split
    return moved


def flags_for(shares: Sequence[float]) -> str:
    """The options that name files for the splits that are held out."""
    options = [o for o, share in zip(("--valid-data", "--test-data"), shares, strict=True) if share > 0]
    return " and ".join(options)
