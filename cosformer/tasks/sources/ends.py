"""The ends of texts, held out for validation and test."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cosformer.tasks.sources.source import TEST, TRAIN, VALID
from cosformer.tasks.sources.text_files import PIECE, letter_after, line_end_after, unpacked_length

LEAST = 32  # bytes of a split: of less nothing can be said


@dataclass(frozen=True, slots=True)
class Ends:
    """Where texts are cut: train, then valid, then test."""

    shares: tuple[float, float]
    within_lines: bool = False
    """Between any two letters, for lines so long that cutting after one would leave a split empty."""
    _found: dict[Path, list[int]] = field(default_factory=dict)

    def of(self, path: Path, split: str) -> tuple[int, int]:
        """The bytes of a split in a file."""
        if path not in self._found:
            self._found[path] = self._cut(path)
        at = (TRAIN, VALID, TEST).index(split)
        return self._found[path][at], self._found[path][at + 1]

    def _cut(self, path: Path) -> list[int]:
        length = unpacked_length(path)
        valid, test = self.shares
        after = letter_after if self.within_lines else line_end_after
        cuts = [0, after(path, int(length * (1 - valid - test)))]
        return [*cuts, max(cuts[-1], after(path, int(length * (1 - test))) if test else length), length]


def cut_ends(paths: Sequence[Path], shares: tuple[float, float]) -> Ends | None:
    """After lines if that leaves something for every split, else within them; None: there is too little text."""
    wanted = [TRAIN, *(split for split, share in zip((VALID, TEST), shares, strict=True) if share > 0)]
    ends = Ends(shares)
    least = min(share for share in (1 - sum(shares), *shares) if share > 0)
    if any(path.stat().st_size * least > 2 * PIECE for path in paths):  # of packed files, without reading one through
        return ends
    for within_lines, fewest in ((False, 1), (True, LEAST)):
        ends = Ends(shares, within_lines)
        sizes = {split: sum(stop - start for start, stop in (ends.of(p, split) for p in paths)) for split in wanted}
        if min(sizes.values()) >= fewest:
            return ends
    return None
