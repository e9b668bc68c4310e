"""A vocabulary of whole words, as word-level WikiText is counted: words between spaces, <eos> at each line's end."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from cosformer.tasks.errors import BadData
from cosformer.tasks.pieces import Piece

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


def word_tokenizer(pieces: Iterable[Piece], *, most: int | None = None) -> Any:
    """A `tokenizers.Tokenizer` with every word of the text, most frequent first (the `most` first of them).

    Words are equal where their letters are; the text's own <unk> is the unknown word.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    if most is not None and most < 4:
        raise ValueError(f"most={most}: {PAD}, {EOS} and {UNKNOWN} come first; ask for more, None for all words")
    counts: Counter[str] = Counter()
    for piece in pieces:
        counts.update(piece.data.decode("utf-8").split())
    if not counts:
        raise BadData("the text is empty: there are no words to make a vocabulary of")
    for name in (PAD, EOS, UNKNOWN):
        counts.pop(name, None)
    kept = sorted(counts, key=lambda word: (-counts[word], word))[: None if most is None else most - 3]
    vocabulary = {word: i for i, word in enumerate((PAD, EOS, UNKNOWN, *kept))}
    inner: Any = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    inner.normalizer = normalizers.Replace("\n", f" {EOS} ")
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner
