"""What bits per byte cost without a neural network: gzip, and an n-gram of bytes."""

import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST = 8  # bytes in a 64-bit word


def gzip_bits_per_byte(text: Iterable[bytes]) -> float:
    """Of the text as one gzip file at level 9, which sees nothing else."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    length = packed = 0
    for piece in text:
        length += len(piece)
        packed += len(packer.compress(piece))
    if not length:
        raise ValueError("the text is empty: it has no bits per byte")
    return 8 * (packed + len(packer.flush())) / length


class ByteNgram:
    """p(c | h) = (count(hc) + u(h)·p(c | h without its first byte)) / (count(h) + u(h)), down to 1/256 for every byte.

    u(h) is the number of different bytes seen after h (Witten and Bell): what was never seen gets the weight of how
    often something new came. A context that was never seen backs off to a shorter one. Probabilities sum to 1.
    Counts are exact. Memory is about 30 bytes per byte of text while it is made: give it a part of a large text.
    """

    def __init__(self, text: bytes | NDArray[np.uint8], *, order: int = 6) -> None:
        """order: bytes of an n-gram, so order − 1 of context."""
        if not 1 <= order <= LONGEST:
            raise ValueError(f"order={order}: 1 to {LONGEST}, so that an n-gram is one word of 64 bits")
        data = np.frombuffer(text, np.uint8) if isinstance(text, bytes) else text
        if not len(data):
            raise ValueError("the text is empty: there is nothing to count")
        self.order = order
        self.tables = [_Counts(data, n) for n in range(1, min(order, len(data)) + 1)]

    def probabilities(self, text: bytes | NDArray[np.uint8]) -> NDArray[np.float64]:
        """Of each byte after those before it (the first ones have a shorter context)."""
        data = np.frombuffer(text, np.uint8) if isinstance(text, bytes) else text
        p = np.full(len(data), 1 / 256)
        for n, table in enumerate(self.tables, 1):
            if len(data) < n:
                break
            p[n - 1 :] = table.weigh(_grams(data, n), p[n - 1 :])
        return p

    def bits_per_byte(self, text: Iterable[bytes] | Sequence[bytes]) -> float:
        """Each piece is read from its own beginning."""
        bits, length = 0.0, 0
        for piece in text:
            bits -= float(np.log2(self.probabilities(piece)).sum())
            length += len(piece)
        if not length:
            raise ValueError("the text is empty: it has no bits per byte")
        return bits / length


class _Counts:
    """Of all n-grams, and for each context how often and how variously it went on."""

    def __init__(self, data: NDArray[np.uint8], n: int) -> None:
        self.grams, self.times = np.unique(_grams(data, n), return_counts=True)
        self.contexts, first = np.unique(self.grams >> np.uint64(8), return_index=True)  # sorted, so runs
        self.seen = np.add.reduceat(self.times, first)
        self.kinds = np.diff([*first, len(self.grams)])

    def weigh(self, grams: NDArray[np.uint64], shorter: NDArray[np.float64]) -> NDArray[np.float64]:
        contexts = grams >> np.uint64(8)
        times = _looked_up(self.grams, self.times, grams)
        seen = _looked_up(self.contexts, self.seen, contexts)
        kinds = _looked_up(self.contexts, self.kinds, contexts)
        return np.where(seen > 0, (times + kinds * shorter) / np.maximum(seen + kinds, 1), shorter)


def _grams(data: NDArray[np.uint8], n: int) -> NDArray[np.uint64]:
    """Every n bytes in a row as one number, the first byte highest."""
    found = np.zeros(len(data) - n + 1, np.uint64)
    for i in range(n):
        found = (found << np.uint64(8)) | data[i : len(data) - n + 1 + i].astype(np.uint64)
    return found


def _looked_up(keys: NDArray[np.uint64], values: NDArray[np.int64], wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)
