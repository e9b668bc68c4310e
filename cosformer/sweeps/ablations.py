"""The ablations of the paper as variants of any recipe, and variants as a person writes them."""

from collections.abc import Iterable

from cosformer.sweeps.jobs import Variant, attention_variants
from cosformer.training import BadRecipe

NOCOS = "model.attention=cosformer_nocos"
ABLATIONS: dict[str, tuple[Variant, ...]] = {
    # which property of softmax matters: non-negative weights (relu), and their concentration
    "features": (
        Variant(name="identity", assignments=(NOCOS, "model.feature_map=identity")),
        Variant(name="leaky_relu", assignments=(NOCOS, "model.feature_map=leaky_relu")),
        Variant(name="relu", assignments=(NOCOS, "model.feature_map=relu")),
        Variant(name="softmax", assignments=("model.attention=softmax",)),
    ),
    "cos": (
        Variant(name="with_cos", assignments=("model.attention=cosformer", "model.feature_map=relu")),
        Variant(name="without_cos", assignments=(NOCOS, "model.feature_map=relu")),
    ),
    # the cosine against positional encodings, in models that know of positions in no other way
    "positions": (
        Variant(name="relu+cos", assignments=("model.attention=cosformer", "model.positions=none")),
        Variant(
            name="relu+rope",
            assignments=(NOCOS, "model.positions=rotary", "model.attention_options.rotary=numerator"),
        ),
        Variant(
            name="relu+spe_sine", assignments=(NOCOS, "model.positions=none", "model.attention_options.spe=sine")
        ),
        Variant(
            name="relu+spe_gated", assignments=(NOCOS, "model.positions=none", "model.attention_options.spe=gated")
        ),
        Variant(name="relu+nothing", assignments=(NOCOS, "model.positions=none")),
    ),
}  # fmt: skip


def read_variant(text: str) -> Variant:
    """`NAME: FIELD=VALUE; FIELD=VALUE`."""
    name, colon, rest = text.partition(":")
    assignments = tuple(part.strip() for part in rest.split(";") if part.strip())
    if not colon or not assignments:
        raise BadRecipe(
            f"variant {text!r}: write a name, a colon, and fields with semicolons, as in 'silu: model.feature_map=silu'"
        )
    return Variant(name=name.strip(), assignments=assignments)


def variants_of(ablations: Iterable[str], attentions: Iterable[str], written: Iterable[str]) -> list[Variant]:
    """All that were asked for, in this order, each once."""
    found: list[Variant] = []
    for name in ablations:
        if name not in ABLATIONS:
            raise BadRecipe(f"there is no ablation {name!r}: use some of {', '.join(ABLATIONS)}")
        found += ABLATIONS[name]
    found += attention_variants(attentions)
    found += map(read_variant, written)
    return list(dict.fromkeys(found))
