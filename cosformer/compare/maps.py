"""Who attends to what: the weights of every attention on the same queries and keys.

An attention is linear in its values, so what it gives for the identity as values is its matrix of weights, whatever is
computed inside. Words are random vectors, the same for the same word; queries look for the word itself.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cosformer.compare.settings import CUDNN

TEXT = (
    "the cat sat on the mat and the dog sat by the door while the rain fell on the roof . "
    "when the rain stopped , the dog went out of the door and the cat slept on the mat until the sun came out . "
    "then the cat went out too and sat by the dog in the sun , far from the mat and the door , while the roof dried ."
)
WORDS = TEXT.split()
WIDTH, SHARPNESS = 32, 3.0
SMALL: dict[str, dict[str, Any]] = {
    "sparse": {"stride": 8}, "bigbird": {"block": 6, "random": 2}, "linformer": {"rank": 18},
    "reformer": {"chunk": 8, "buckets": 8}, "performer": {"features": 256}, "rfa": {"features": 256},
    "rfa_gated": {"features": 256},
}  # fmt: skip
"""Options for so few words: with their defaults, patterns of blocks would cover all of it."""


@dataclass(frozen=True, slots=True)
class WeightMap:
    attention: str
    mode: str
    weights: Tensor | None
    """[T, T]; may hold negative ones where an attention only estimates. None: it cannot do this mode."""
    why: str = ""


def words_as_vectors() -> tuple[Tensor, Tensor]:
    """q and k [1, 1, T, K]: a vector for each word drawn from its letters, a query sharper than its key."""

    def vector(word: str) -> Tensor:
        seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest())
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))

    k = torch.stack([vector(word) for word in WORDS])[None, None]
    own = torch.randn(k.shape, generator=torch.Generator().manual_seed(1))
    return SHARPNESS * (k + 0.5 * own) * WIDTH**-0.25, k * WIDTH**-0.25


def weight_map(attention: str, mode: str) -> WeightMap:
    from cosformer.models import KINDS, CosformerConfig
    from cosformer.models.layout import Layout

    q, k = words_as_vectors()
    length = len(WORDS)
    try:
        config = CosformerConfig(
            hidden_size=WIDTH, num_attention_heads=1, num_hidden_layers=1, attention=attention,
            causal=mode == "causal", horizon=length, positions="none", attention_options=SMALL.get(attention),
        )  # fmt: skip
    except ValueError as error:
        return WeightMap(attention, mode, None, str(error))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        kind = KINDS[attention](config, 0, causal=mode == "causal").eval()
        weights = kind.attend(q, k, torch.eye(length)[None, None], Layout(), None)[0, 0]
    return WeightMap(attention, mode, weights)


def weight_maps(attentions: list[str], mode: str) -> list[WeightMap]:
    """Kernels of one function share a map, and what has no weights (values of another width) says so."""
    found = []
    for name in attentions:
        if name == CUDNN:
            continue
        try:
            found.append(weight_map(name, mode))
        except (ValueError, RuntimeError, KeyError) as error:  # an attention of somebody else's
            found.append(WeightMap(name, mode, None, f"{type(error).__name__}: {error}"))
    return found
