"""Where each sequence of a call lies: the rows of a batch, or the stretches of one packed row."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sequences:
    """`starts` and `lengths`, in tokens, of the queries and keys of each sequence. `packed`: all lie in batch row 0."""

    packed: bool
    q_starts: tuple[int, ...]
    q_lengths: tuple[int, ...]
    k_starts: tuple[int, ...]
    k_lengths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.q_starts)

    def slices(self) -> list[tuple[slice, slice]]:
        """The queries and the keys of each sequence along time."""
        starts = zip(self.q_starts, self.q_lengths, self.k_starts, self.k_lengths, strict=True)
        return [(slice(q, q + t), slice(k, k + s)) for q, t, k, s in starts]

    @property
    def longest(self) -> int:
        return max(*self.q_lengths, *self.k_lengths)


def batch_sequences(batch: int, t: int, s: int) -> Sequences:
    return Sequences(False, (0,) * batch, (t,) * batch, (0,) * batch, (s,) * batch)


def packed_sequences(cu_q: Tensor, cu_k: Tensor, t: int, s: int, causal: bool) -> Sequences:
    """Reads cu_seqlens (a look at their values, so a wait for the device they live on) and checks them."""
    q, k = read_offsets("cu_seqlens", cu_q, t), read_offsets("cu_seqlens_k", cu_k, s)
    if len(q) != len(k):
        raise ValueError(
            f"cu_seqlens describes {len(q) - 1} sequences but cu_seqlens_k describes {len(k) - 1}: "
            "queries and keys of one sequence must pair up; pass one offset per sequence in both"
        )
    sequences = Sequences(True, q[:-1], _differences(q), k[:-1], _differences(k))
    if causal:
        for i, (a, b) in enumerate(zip(sequences.q_lengths, sequences.k_lengths, strict=True)):
            if a > b:
                raise ValueError(
                    f"causal=True but sequence {i} has T={a} queries and S={b} keys: the queries are the last T of S "
                    "positions, so T must not exceed S; pass the missing keys or a state"
                )
    return sequences


def read_offsets(name: str, cu: Tensor, total: int) -> tuple[int, ...]:
    offsets: list[int] = cu.tolist()
    if offsets[0] != 0:
        raise ValueError(f"{name} starts at {offsets[0]}: the first sequence starts at token 0; prepend a 0")
    for i, (a, b) in enumerate(itertools.pairwise(offsets)):
        if b <= a:
            raise ValueError(
                f"{name} does not increase: entry {i} is {a}, entry {i + 1} is {b}. Sequences hold at least one token; "
                "drop the empty ones and sort the offsets"
            )
    if offsets[-1] != total:
        raise ValueError(
            f"{name} ends at {offsets[-1]} but there are {total} tokens: every token belongs to a sequence; "
            f"the last entry must be {total}"
        )
    return tuple(offsets)


def _differences(offsets: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b - a for a, b in itertools.pairwise(offsets))


def by_sequence(numbers: Iterable[int]) -> int | Tensor:
    """A number for each sequence, as `turn` takes it: one where they agree, as in a batch, which needs no tensor."""
    numbers = tuple(numbers)
    return numbers[0] if len(set(numbers)) == 1 else torch.tensor(numbers, dtype=torch.int64)


def sequence_lengths(cu: Tensor) -> Tensor:
    """[N] int64 on the CPU, without looking at the values in Python: also good inside a traced graph."""
    return cu.diff().to("cpu", torch.int64)
