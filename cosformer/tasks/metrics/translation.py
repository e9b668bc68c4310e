"""BLEU as sacrebleu counts it, with the signature that makes it comparable."""

from collections.abc import Sequence

from cosformer.tasks.optional import need


def bleu(said: Sequence[str], true: Sequence[str], *, lowercase: bool = False) -> dict[str, float | str]:
    """Corpus BLEU (0–100) of one translation per source, and sacrebleu's signature."""
    if len(said) != len(true) or not said:
        raise ValueError(f"{len(said)} translations of {len(true)} references: one for each, and at least one")
    library = need("sacrebleu", "BLEU")
    metric = library.BLEU(lowercase=lowercase)
    return {
        "bleu": float(metric.corpus_score(list(said), [list(true)]).score),
        "signature": str(metric.get_signature()),
    }
