"""Random numbers as a function of keys and a counter: the same on every machine, version and process."""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key_of(*parts: int | str) -> np.uint64:
    """A key for what the parts name, e.g. ("mask", seed, epoch, index)."""
    text = "\0".join(str(part) for part in parts)
    return np.uint64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))


def mix(x: Words) -> Words:
    """The finaliser of splitmix64: every bit of the input moves half the bits of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def words(key: np.uint64, count: int) -> Words:
    """`count` random 64-bit words."""
    with np.errstate(over="ignore"):
        return mix(key + (np.arange(1, count + 1, dtype=np.uint64)) * GOLDEN)


def is_below(drawn: Words, share: float) -> NDArray[np.bool_]:
    """Whether words, taken as numbers in [0, 1) by their first 53 bits, are less; these numbers are not made."""
    most = math.ceil(share * 2**53)  # of 53 bits; a product with a power of two is exact
    if most >= 2**53:
        return np.ones(drawn.shape, bool)
    return drawn < np.uint64(most << 11)


class Permutation:
    """A random order of 0 … length − 1 of which any part is computed when asked for; nothing is stored.

    A Feistel network of eight rounds permutes the numbers below a power of four, at most four times `length`; a number
    that falls outside is sent through again until it is inside, which keeps it a permutation.
    """

    ROUNDS = 8

    def __init__(self, length: int, *key: int | str) -> None:
        if length < 0:
            raise ValueError(f"length={length}: a permutation of no fewer than 0 things")
        self.length = length
        self.half = np.uint64(max(1, (max(length - 1, 1).bit_length() + 1) // 2))
        self.low = np.uint64((1 << int(self.half)) - 1)
        self.keys = words(key_of("permutation", *key), self.ROUNDS)

    def __len__(self) -> int:
        return self.length

    def slice(self, start: int, stop: int) -> NDArray[np.int64]:
        """What stands at places start … stop − 1."""
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"places {start} to {stop} of {self.length}")
        x = np.arange(start, stop, dtype=np.uint64)
        outside = np.ones(len(x), bool)
        while outside.any():
            x[outside] = self._network(x[outside])
            outside = x >= np.uint64(self.length)
        return x.astype(np.int64)

    def _network(self, x: Words) -> Words:
        left, right = x >> self.half, x & self.low
        with np.errstate(over="ignore"):
            for key in self.keys:
                left, right = right, left ^ (mix(right * GOLDEN + key) & self.low)
        return (left << self.half) | right
