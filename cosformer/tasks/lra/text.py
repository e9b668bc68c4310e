"""Text of the arena: is a film review positive? IMDB, byte by byte."""

from pathlib import Path

from cosformer.tasks.encoders import ByteEncoder
from cosformer.tasks.lra.source import LraSource
from cosformer.tasks.sources.imdb import Imdb


class LraText(Imdb, LraSource):
    """The source imdb under the arena's name: validation is a tenth of train, never test."""

    name = "lra-text"
    encoder = ByteEncoder()
    length = 4_000

    def __init__(self, path: str | Path | None = None) -> None:
        super().__init__(path)
