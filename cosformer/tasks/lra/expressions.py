"""Expressions of ListOps: grown at random level by level, worked out and written down; numpy does each level at once.

A node is an operator with probability 1/4 (with 2 to `max_args` arguments) and a digit otherwise; at depth `max_depth`
it is a digit. Expressions of another length are thrown away, as in the generator of the arena.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cosformer.tasks.errors import BadData
from cosformer.tasks.keyed_random import GOLDEN, words
from cosformer.tasks.lra.vocabularies import DIGITS, END, LISTOPS, OPERATORS

Ints = NDArray[np.int64]
ATTEMPTS = 20_000  # one in three has a length of 500 to 2,000; rarer wishes take longer


class Level(NamedTuple):
    """The nodes of one depth, from left to right; the arguments of its operators are the next level."""

    operator: NDArray[np.bool_]
    arguments: Ints
    """Of each operator (only of operators)."""
    kind: Ints
    """Place in OPERATORS (only of operators)."""
    digit: Ints
    """Of every node; those of operators mean nothing."""


def grow(key: np.uint64, min_length: int, max_length: int, max_depth: int, max_args: int) -> list[Level]:
    """The first expression of a wanted length among those the key gives."""
    used = 0
    for _ in range(ATTEMPTS):
        levels: list[Level] = []
        nodes, length = 1, 0
        while nodes and length + nodes <= max_length:  # a node takes a token at least
            with np.errstate(over="ignore"):
                word = words(key + np.uint64(used) * GOLDEN, nodes)  # a word holds all that is random of a node
            used += nodes
            level = _level(word, len(levels) + 1, max_depth, max_args)
            levels.append(level)
            length += nodes + len(level.kind)
            nodes = int(level.arguments.sum())
        if not nodes and min_length <= length <= max_length:
            return levels
    raise ValueError(
        f"no expression of {min_length} to {max_length} tokens in {ATTEMPTS:,} attempts with max_depth={max_depth} and "
        f"max_args={max_args}: allow more depth, more arguments or other lengths"
    )


def _level(word: NDArray[np.uint64], depth: int, max_depth: int, max_args: int) -> Level:
    if depth == 1:
        operator = np.ones(1, bool)  # a lone digit is never long enough
    elif depth == max_depth:
        operator = np.zeros(len(word), bool)
    else:
        operator = word >> np.uint64(62) == 0
    chosen = word[operator]
    arguments = 2 + _scaled(chosen >> np.uint64(32), 16, max_args - 1)
    kind = _scaled(chosen >> np.uint64(48), 14, len(OPERATORS))
    return Level(operator, arguments, kind, _scaled(word, 32, len(DIGITS)))


def _scaled(word: NDArray[np.uint64], bits: int, below: int) -> Ints:
    """0 … below − 1 from the lowest bits."""
    low = word & np.uint64((1 << bits) - 1)
    return (low * np.uint64(below) >> np.uint64(bits)).astype(np.int64)


def worked_out(levels: list[Level]) -> tuple[list[Ints], list[Ints]]:
    """Value, and length in tokens, of every node of every level."""
    values: list[Ints] = []
    lengths: list[Ints] = []
    for level in reversed(levels):
        value, length = level.digit.copy(), np.ones(len(level.digit), np.int64)
        if len(level.kind):
            starts = np.cumsum(level.arguments) - level.arguments
            below = values[-1]
            segment = np.repeat(np.arange(len(starts)), level.arguments)
            ordered = below[np.lexsort((below, segment))]  # each operator's arguments, smallest first
            ends = starts + level.arguments - 1
            middle = ordered[starts + (level.arguments - 1) // 2] + ordered[starts + level.arguments // 2]
            answers = np.stack([ordered[ends], ordered[starts], middle // 2, np.add.reduceat(below, starts) % 10])
            value[level.operator] = answers[level.kind, np.arange(len(starts))]
            length[level.operator] = 2 + np.add.reduceat(lengths[-1], starts)
        values.append(value)
        lengths.append(length)
    return values[::-1], lengths[::-1]


def written(levels: list[Level], lengths: list[Ints]) -> Ints:
    """Token ids, in the order of reading."""
    tokens = np.zeros(int(lengths[0][0]), np.int64)
    place = np.zeros(1, np.int64)
    for depth, level in enumerate(levels):
        tokens[place] = LISTOPS[DIGITS[0]] + level.digit
        if not len(level.kind):
            break
        opened = place[level.operator]
        tokens[opened] = LISTOPS[OPERATORS[0]] + level.kind
        tokens[opened + lengths[depth][level.operator] - 1] = LISTOPS[END]
        starts = np.cumsum(level.arguments) - level.arguments
        below = lengths[depth + 1]
        before = np.cumsum(below) - below  # tokens of the level's nodes to the left
        place = before + np.repeat(opened + 1 - before[starts], level.arguments)
    return tokens


def evaluate(text: str) -> int:
    """The value of a written expression, read from left to right with a stack."""
    stack: list[tuple[str, list[int]]] = [("", [])]
    for word in text.split():
        if word in OPERATORS:
            stack.append((word, []))
        elif word in DIGITS:
            stack[-1][1].append(int(word))
        elif word == END and len(stack) > 1 and stack[-1][1]:
            operator, values = stack.pop()
            stack[-1][1].append(_applied(operator, sorted(values)))
        else:
            raise BadData(f"ListOps: {word!r} cannot stand where it stands in {text[:60]!r}…")
    if len(stack) != 1 or len(stack[0][1]) != 1:
        raise BadData(f"ListOps: {text[:60]!r}… is not one whole expression: {len(stack) - 1} brackets are open")
    return stack[0][1][0]


def _applied(operator: str, ordered: list[int]) -> int:
    if operator == "[MED":
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2
    return {"[MAX": ordered[-1], "[MIN": ordered[0], "[SM": sum(ordered) % 10}[operator]
