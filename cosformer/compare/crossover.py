"""From which length on an attention takes less than softmax: time or memory, interpolated between measured lengths."""

import math
from dataclasses import dataclass

from cosformer.compare.results import BASELINES, ENDS, Result


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossover:
    """`length` is a number where both were measured on either side; else `words` say what is known."""

    words: str
    length: float | None = None
    """To sort by: 0 where it is always less, ∞ where never, None where nothing can be said."""


def crossover(ours: dict[int, float], softmax: dict[int, float], *, ended: tuple[int, str] | None = None) -> Crossover:
    """The length from which `ours` stays below `softmax`; both by length, less is better.

    Between two lengths the logarithm of their ratio is taken to be straight over the logarithm of the length. ended:
    the length at which softmax could not be measured any more, and why.
    """
    both = sorted(set(ours) & set(softmax))
    if not both:
        return Crossover(words="–")
    ratio = {n: math.log(ours[n] / softmax[n]) for n in both}
    below = [n for n in both if ratio[n] < 0]
    last = both[-1]
    if ratio[last] >= 0:
        alone = sorted(n for n in ours if n > last)
        if ended is not None and alone and ended[0] <= alone[0]:
            words = f"between {last:,} and {alone[0]:,} (softmax: {ended[1]})"
            return Crossover(words=words, length=math.sqrt(last * alone[0]))
        return Crossover(words=f"not up to {last:,}", length=math.inf)
    if len(below) == len(both):
        return Crossover(words=f"below {both[0]:,}", length=0.0)
    before = max(n for n in both if ratio[n] >= 0)
    after = both[both.index(before) + 1]
    share = ratio[before] / (ratio[before] - ratio[after])
    at = math.exp(math.log(before) + share * (math.log(after) - math.log(before)))
    return Crossover(words=f"{rounded(at):,}", length=at)


def rounded(length: float) -> int:
    """Two digits: more is not known."""
    power = 10 ** max(0, math.floor(math.log10(length)) - 1)
    return int(round(length / power) * power)


def crossovers(result: Result, attention: str, mode: str, work: str, what: str) -> Crossover:
    """Of a result; what: us_per_token or bytes_per_token."""
    cells = result.of(attention, mode, work)
    ours = {c.length: x for c in cells if (x := getattr(c, what)) is not None and x > 0}
    softmax = {n: x for n, x in result.baseline(mode, work, what).items() if x > 0}
    ended = _end(result, mode, work)
    if what == "bytes_per_token" and ended is not None and ended[1] == "slow":
        ended = None  # what takes long need not take much
    return crossover(ours, softmax, ended=ended)


def _end(result: Result, mode: str, work: str) -> tuple[int, str] | None:
    """Where the last of softmax's kernels gave up, if all did."""
    ends = []
    for name in BASELINES:
        cells = result.of(name, mode, work)
        stopped = next(((c.length, c.state) for c in cells if c.state in ENDS), None)
        if cells and stopped is None and any(c.us_per_token is not None for c in cells):
            return None
        if stopped is not None:
            ends.append(stopped)
    return max(ends) if ends else None
