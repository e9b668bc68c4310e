"""ListOps: what is [MAX 4 [MIN 2 3 ] 0 ]? Generated."""

from dataclasses import dataclass
from pathlib import Path

from cosformer.tasks.keyed_random import key_of
from cosformer.tasks.lra.expressions import grow, worked_out, written
from cosformer.tasks.lra.processes import Made
from cosformer.tasks.lra.source import GeneratedSource
from cosformer.tasks.lra.vocabularies import DIGITS, LISTOPS, ListOpsEncoder, listops_tokenizer

WORDS = list(LISTOPS)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpressionMaker:
    """Expressions and their values, each by (seed, split, index)."""

    seed: int = 0
    min_length: int = 500
    """Tokens; brackets are tokens."""
    max_length: int = 2_000
    max_depth: int = 10
    """Of the digits: operators stand at most one less deep."""
    max_args: int = 10

    def __post_init__(self) -> None:
        if self.min_length < 4:
            raise ValueError(f"min_length={self.min_length}: the shortest expression has 4 tokens")
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length={self.min_length}, max_length={self.max_length}: no length is between; raise max_length"
            )
        if self.max_depth < 2 or not 2 <= self.max_args <= 1_000:
            raise ValueError(
                f"max_depth={self.max_depth}, max_args={self.max_args}: an operator has 2 arguments or more (at most "
                "1,000) and they are one deeper"
            )

    def make(self, split: str, start: int, stop: int) -> Made:
        made: Made = []
        for index in range(start, stop):
            key = key_of("lra-listops", self.seed, split, index)
            levels = grow(key, self.min_length, self.max_length, self.max_depth, self.max_args)
            values, lengths = worked_out(levels)
            text = " ".join([WORDS[token] for token in written(levels, lengths).tolist()])
            made.append((text, int(values[0][0])))
        return made


class ListOps(GeneratedSource):
    """Ten classes, the digits. Options: see GeneratedSource and ExpressionMaker."""

    name = "lra-listops"
    classes = DIGITS
    encoder = ListOpsEncoder()
    tokenizer = staticmethod(listops_tokenizer)
    length = 2_000
    version, block, text_bytes = 1, 200, 2_470

    def __init__(
        self, path: str | Path | None = None, *, seed: int = 0, sizes: tuple[int, int, int] = (96_000, 2_000, 2_000),
        workers: int | None = None, min_length: int = 500, max_length: int = 2_000, max_depth: int = 10,
        max_args: int = 10,
    ) -> None:  # fmt: skip
        super().__init__(path, seed, sizes, workers)
        self.maker = ExpressionMaker(
            seed=seed, min_length=min_length, max_length=max_length, max_depth=max_depth, max_args=max_args
        )
