"""Colour and style of each attention: the same in every chart, whatever else is in it."""

from collections.abc import Iterable

ORDER = (
    "cosformer", "softmax", "cosformer_nocos", "linear", "performer", "rfa", "rfa_gated", "sparse", "reformer",
    "linformer", "bigbird", "softmax_cudnn",
)  # fmt: skip
COLOURS = 12  # of the page
KIN = {"softmax_cudnn": (2, 2)}
"""The same function by another kernel: the same colour, another line."""


def ordered(names: Iterable[str]) -> list[str]:
    """Ours, softmax, the kin of ours, the others; then names of somebody else's, as they come."""
    given = list(dict.fromkeys(names))
    return [name for name in ORDER if name in given] + [name for name in given if name not in ORDER]


def looks(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Colour, from 1, and style of each; names that are not ours get the colours that are left, while there are any."""
    given = list(dict.fromkeys(names))
    found = {name: KIN.get(name) or (ORDER.index(name) + 1, ORDER.index(name)) for name in given if name in ORDER}
    taken = {colour for colour, _ in found.values()}
    free = [colour for colour in range(COLOURS, 0, -1) if colour not in taken]
    for i, name in enumerate(name for name in given if name not in ORDER):
        colour = free[i] if i < len(free) else i % COLOURS + 1
        found[name] = (colour, len(ORDER) + i)
    return found
