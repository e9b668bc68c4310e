"""From text to token ids, in this process or in another: bytes as they are, or a tokenizer of transformers.

Nothing here imports transformers: a tokenizer is passed in; its inner part (of the package `tokenizers`) travels.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[Any]
SPECIALS = 3  # <pad>, <bos>, <eos> come first in the byte tokenizer


class Unknown(NamedTuple):
    """The token of every word that a vocabulary lacks."""

    id: int
    word: str


class Encoder(Protocol):
    """What turns pieces of text into ids. It is pickled to reach other processes."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal for encoders that give equal ids for every text."""
        ...

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        """Ids of each text (UTF-8); raises UnicodeDecodeError where it must be text and is not."""
        ...


class ByteEncoder:
    """id = 3 + byte, as byte_tokenizer() gives; numpy does it, no tokenizer runs. Takes any bytes."""

    vocab_size = SPECIALS + 256
    fingerprint = "bytes+3"

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        return [np.frombuffer(text, np.uint8).astype(np.uint16) + np.uint16(SPECIALS) for text in texts]


class TokenizerEncoder:
    """A tokenizer of the package `tokenizers`, as its JSON. No special tokens are added.

    plain: text is never read as a special token, even if it spells one.
    """

    def __init__(self, definition: str, *, plain: bool = True) -> None:
        self.definition, self.plain = definition, plain

    @cached_property
    def inner(self) -> Any:
        from tokenizers import Tokenizer

        inner: Any = Tokenizer.from_str(self.definition)
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = self.plain
        return inner

    @property
    def vocab_size(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        return max(self.inner.get_vocab(True).values()) + 1

    @property
    def unknown(self) -> Unknown | None:
        """None: every text is spelt. By the model, because what a tokenizer calls unk_token may have another use."""
        model = json.loads(self.definition)["model"]
        word = model.get("unk_token")
        if word is None and model.get("unk_id") is not None:
            word = model["vocab"][model["unk_id"]][0]
        if word is None or (token := self.inner.token_to_id(word)) is None:
            return None
        return Unknown(token, word)

    @property
    def fingerprint(self) -> str:
        definition = json.loads(self.definition)
        definition.pop("padding", None)
        definition.pop("truncation", None)
        definition["post_processor"] = None  # what is put around a text is not asked for here
        text = json.dumps([definition, self.plain], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        decoded = [text.decode("utf-8") for text in texts]
        kind = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        return [np.asarray(e.ids, kind) for e in self.inner.encode_batch_fast(decoded, add_special_tokens=False)]

    def __getstate__(self) -> dict[str, Any]:
        return {"definition": self.definition, "plain": self.plain}


def encoder_of(tokenizer: Any) -> Encoder:
    """The encoder that gives a tokenizer's ids; the byte tokenizer is known by what it does."""
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(inner, "to_str"):
        raise TypeError(
            f"{type(tokenizer).__name__} has no backend of the package `tokenizers`: a fast tokenizer of transformers "
            "is needed, which can work in other processes"
        )
    plain = bool(getattr(inner, "encode_special_tokens", False))
    encoder = TokenizerEncoder(inner.to_str(), plain=plain)
    if encoder.vocab_size == ByteEncoder.vocab_size and plain:
        probe = "".join(map(chr, [*range(0x180), 0x4E00, 0x1F600])) + "<pad><bos><eos>"
        if np.array_equal(encoder.encode([probe.encode()])[0], ByteEncoder().encode([probe.encode()])[0]):
            return ByteEncoder()
    return encoder
