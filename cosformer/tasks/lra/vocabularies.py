"""Token ids of ListOps and of pictures: small, fixed, and the same in the fast encoders and in the tokenizers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cosformer.tasks.encoders import Ids
from cosformer.tasks.errors import BadData

PAD, MASK = "<pad>", "<mask>"
OPERATORS = ("[MAX", "[MIN", "[MED", "[SM")
"""Largest, smallest, median (the mean of the middle two, rounded down), sum modulo 10."""
END = "]"
DIGITS = tuple("0123456789")
LISTOPS = {word: i for i, word in enumerate((PAD, MASK, *OPERATORS, END, *DIGITS))}
LEVELS = 256  # of grey: a pixel is its own token
PIXELS = {**{chr(level): level for level in range(LEVELS)}, PAD: LEVELS, MASK: LEVELS + 1}
_WORDS = {word.encode(): i for word, i in LISTOPS.items()}


class ListOpsEncoder:
    """Words between spaces, brackets among them: <pad> 0, <mask> 1, operators 2–5, the bracket 6, digits 7–16."""

    vocab_size = len(LISTOPS)
    fingerprint = "lra-listops 1: " + " ".join(LISTOPS)

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        try:
            return [np.asarray([_WORDS[word] for word in text.split()], np.uint16) for text in texts]
        except KeyError as error:
            raise BadData(
                f"ListOps: {error.args[0].decode(errors='replace')!r} is no word of it: {' '.join(LISTOPS)}"
            ) from error


class PixelEncoder:
    """A letter is a pixel and its code point the id, 0–255; <pad> 256, <mask> 257. See picture_text."""

    vocab_size = len(PIXELS)
    fingerprint = "lra-pixels 1: code points, pad 256, mask 257"

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        try:
            return [np.frombuffer(text.decode().encode("latin-1"), np.uint8).astype(np.uint16) for text in texts]
        except UnicodeEncodeError as error:
            raise BadData(
                f"pixels: letter {error.object[error.start]!r} is above {LEVELS - 1}: a letter is a grey of 0 to "
                f"{LEVELS - 1}"
            ) from error


def picture_text(pixels: Ids) -> str:
    """Grey levels (uint8), row by row, as letters: examples carry text, so a picture travels as one."""
    return pixels.tobytes().decode("latin-1")


def listops_tokenizer() -> Any:
    """A `tokenizers.Tokenizer` that gives the ids of ListOpsEncoder."""
    from tokenizers import pre_tokenizers

    return _fixed(LISTOPS, pre_tokenizers.WhitespaceSplit())


def pixel_tokenizer() -> Any:
    """A `tokenizers.Tokenizer` that gives the ids of PixelEncoder."""
    from tokenizers import Regex, pre_tokenizers

    return _fixed(PIXELS, pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"))


def _fixed(vocabulary: dict[str, int], splitter: Any) -> Any:
    from tokenizers import AddedToken, Tokenizer, models

    # the unknown word is not in the vocabulary on purpose: a word that is none is an error, not a guess
    inner: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="<none>"))
    inner.pre_tokenizer = splitter
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (PAD, MASK)])
    inner.encode_special_tokens = True
    return inner
