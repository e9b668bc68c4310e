"""Bits per byte and perplexity, from summed losses."""

import math
from dataclasses import dataclass

from cosformer.tasks.shards.manifest import Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSum:
    """Summed cross entropy (nats) of the tokens that were predicted. Sums add: over batches, over processes."""

    nats: float = 0.0
    tokens: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"tokens={self.tokens}: a count")

    def __add__(self, other: "LossSum") -> "LossSum":
        return LossSum(nats=self.nats + other.nats, tokens=self.tokens + other.tokens)

    @property
    def perplexity(self) -> float:
        """Per token; inf where it is too large to say."""
        return _exp(self.nats / _some(self.tokens, "tokens"))

    def bits_per_byte(self, text_bytes: int) -> float:
        """Over the bytes of the text that these tokens spell, whatever the tokenizer."""
        return self.nats / math.log(2) / _some(text_bytes, "bytes")

    def word_perplexity(self, words: int) -> float:
        """Per word, whatever the tokenizer: the same text in pieces of words is compared with whole words."""
        return _exp(self.nats / _some(words, "words"))

    def of_text(self, manifest: Manifest) -> dict[str, float]:
        """All three for a whole split. Words are counted with each line's end, as WikiText does.

        Where words of the text became <unk>, the tokens do not spell it: then perplexity alone, and their share.
        Document marks are predicted too, and counted as tokens but not as bytes. If the first token was not predicted
        (a stream without a token before it), its share is left out of bytes and words.
        """
        share = self.tokens / _some(manifest.tokens, "tokens")
        if self.tokens not in (manifest.tokens, manifest.tokens - 1):
            raise ValueError(
                f"{self.tokens:,} tokens were predicted of {manifest.tokens:,} in {manifest.source} {manifest.split}: "
                "bits per byte are of a whole split; evaluate all of it, or use bits_per_byte(bytes) of the part"
            )
        if not manifest.spelt:
            return {"perplexity": self.perplexity, "unknown_share": manifest.unknown_share}
        return {
            "perplexity": self.perplexity,
            "bits_per_byte": self.nats / math.log(2) / _some(manifest.bytes * share, "bytes"),
            "word_perplexity": _exp(self.nats / _some((manifest.words + manifest.lines) * share, "words")),
        }


def _some(count: float, what: str) -> float:
    if count <= 0:
        raise ValueError(f"{count} {what} were predicted: there is nothing to average over")
    return count


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
