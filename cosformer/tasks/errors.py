"""What can be wrong with data. Each message says what, got, why, fix, and names the file and line."""

from cosformer.tasks.pieces import Piece, Place


class SourceMissing(FileNotFoundError):
    """Files that a source needs are not where they were looked for."""


class BadData(ValueError):
    """A file holds something other than it should; the message begins with its name and line."""


class OptionOfTraining(BadData):
    """What is wrong, and its fix by an option of `cosformer train`; `evaluate` has a model, and another fix."""

    def __init__(self, what: str, training: str, evaluating: str) -> None:
        super().__init__(what, training, evaluating)

    def __str__(self) -> str:
        return self.args[0] + self.args[1]

    def evaluating(self) -> BadData:
        return BadData(self.args[0] + self.args[2])


class DamagedShard(ValueError):
    """A shard on disk is not the one its manifest describes."""


class MissingPackage(ImportError):
    """An optional package is needed for this kind of data."""


def not_utf8(place: Place, error: UnicodeDecodeError) -> BadData:
    wrong = error.object[error.start]
    return BadData(
        f"{place}: byte 0x{wrong:02x} is not UTF-8 ({error.reason}): convert the file (iconv -t utf-8), or use the "
        "byte tokenizer, which takes bytes as they are"
    )


def piece_not_utf8(piece: Piece, error: UnicodeDecodeError) -> BadData:
    """The line is that of the byte, not that where the piece begins."""
    lines = piece.data.count(b"\n", 0, error.start)
    return not_utf8(piece.place._replace(line=piece.place.line + lines), error)
