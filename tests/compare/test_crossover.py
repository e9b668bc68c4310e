"""Where softmax is overtaken: a number where both were measured, words where not."""

import math

import pytest

from cosformer.compare.crossover import crossover, crossovers, rounded
from cosformer.compare.results import Cell, Result


def by_length(f) -> dict[int, float]:
    return {n: f(n) for n in (512, 1_024, 2_048, 4_096, 8_192)}


SOFTMAX = by_length(lambda n: n / 1_000)


def test_straight_lines_cross_where_they_do() -> None:
    for at in (700, 1_448, 4_100):
        found = crossover(by_length(lambda n, at=at: at / 1_000), SOFTMAX)
        assert found.length == pytest.approx(at)
        assert found.words == f"{rounded(at):,}"


def test_always_and_never() -> None:
    assert crossover(by_length(lambda n: 0.1), SOFTMAX).words == "below 512"
    assert crossover(by_length(lambda n: 0.1), SOFTMAX).length == 0
    never = crossover(by_length(lambda n: 10.0), SOFTMAX)
    assert (never.words, never.length) == ("not up to 8,192", math.inf)


def test_the_last_crossing_counts() -> None:
    """Less at 512, more at 1,024, less from 2,048: from then on it stays below."""
    ours = SOFTMAX | {512: 0.4, 1_024: 1.1, 2_048: 1.9, 4_096: 1.9, 8_192: 2.0}
    found = crossover(ours, SOFTMAX)
    assert found.length is not None
    assert 1_024 < found.length < 2_048


def test_softmax_that_could_not_go_on_is_overtaken() -> None:
    softmax = {n: x for n, x in SOFTMAX.items() if n <= 2_048}
    found = crossover(by_length(lambda n: 3.0), softmax, ended=(4_096, "out of memory"))
    assert found.words == "between 2,048 and 4,096 (softmax: out of memory)"
    assert crossover(by_length(lambda n: 3.0), softmax).words == "not up to 2,048"  # it may yet go on


def test_nothing_in_common_is_a_dash() -> None:
    assert crossover({}, SOFTMAX).words == "–"
    assert crossover({512: 1.0}, {}).length is None


def test_two_digits() -> None:
    assert [rounded(x) for x in (7, 512, 1_448.2, 65_000)] == [7, 510, 1_400, 65_000]


def test_a_result_is_compared_with_the_fastest_softmax() -> None:
    result = Result(environment={}, settings={})
    for attention, times in (
        ("softmax", (2.0, 4.0)), ("softmax_cudnn", (1.0, 2.0)), ("linear", (1.5, 1.5)),
    ):  # fmt: skip
        for length, ms in zip((512, 1_024), times, strict=True):
            cell = Cell(attention, "causal", "forward", length, 1, state="done", samples=[ms * length])
            result.cells[cell.key] = cell
    assert result.baseline("causal", "forward", "us_per_token") == {512: 1_000.0, 1_024: 2_000.0}
    found = crossovers(result, "linear", "causal", "forward", "us_per_token")
    assert found.length == pytest.approx(512 * 1.5)


@pytest.mark.parametrize(
    ("state", "what", "words"),
    [
        ("slow", "us_per_token", "between 512 and 1,024 (softmax: slow)"),
        ("slow", "bytes_per_token", "not up to 512"),  # what takes long need not take much
        ("out of memory", "bytes_per_token", "between 512 and 1,024 (softmax: out of memory)"),
    ],
)
def test_softmax_that_is_slow_is_not_large(state: str, what: str, words: str) -> None:
    result = Result(environment={}, settings={})
    for attention, size in (("softmax", 1), ("linear", 2)):
        for length in (512, 1_024):
            cell = Cell(attention, "causal", "forward", length, 1, state="done", samples=[1.0 * size * length])
            cell.memory_bytes = size * length
            result.cells[cell.key] = cell
    last = result.of("softmax", "causal", "forward")[-1]
    last.state, last.samples, last.memory_bytes = state, [], None
    assert crossovers(result, "linear", "causal", "forward", what).words == words
