"""Colour and style of each attention: the same in every chart, whatever else is in it."""

from collections.abc import Iterable

ORDER = (
    "cosformer", "softmax", "cosformer_nocos", "linear", "performer", "rfa", "rfa_gated", "linear_spe", "sparse",
    "reformer", "linformer", "bigbird", "softmax_cudnn",
)  # fmt: skip
COLOURS = 12  # of the page


def ordered(names: Iterable[str]) -> list[str]:
    """Ours, softmax, the kin of ours, the others; then names of somebody else's, as they come."""
    given = list(dict.fromkeys(names))
    return [name for name in ORDER if name in given] + [name for name in given if name not in ORDER]


def looks(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Colour, from 1, and style of each."""
    found = {}
    others = len(ORDER)
    for name in names:
        place = ORDER.index(name) if name in ORDER else others
        others += name not in ORDER
        found[name] = (place % COLOURS + 1, place)
    return found
