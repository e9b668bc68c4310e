"""The data of a run: source, tokenizer, shards in the cache, data sets, collator."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cosformer.models.losses import next_token_labels
from cosformer.tasks import (
    Encoder,
    ExampleSource,
    LabelledTexts,
    LraSource,
    Marks,
    Masked,
    MaskedTexts,
    MaskedWindows,
    PackCollator,
    PackedDocuments,
    PadCollator,
    Progress,
    SequencePairs,
    ShardSet,
    Source,
    TextSource,
    Windows,
    encoder_of,
    prepare,
)
from cosformer.training.batches import ByEpoch, MaskedByEpoch
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe
from cosformer.training.sources import file_name, place_of, source_of
from cosformer.training.vocabulary import tokenizer_of

BLACK = 0  # the token of a black pixel
MULTIPLE = 16  # padded lengths are multiples of it: fewer shapes for kernels and compilers


@dataclass(frozen=True, kw_only=True)
class RunData:
    """Everything a model is trained and evaluated on."""

    recipe: Recipe
    source: Source
    tokenizer: Any
    shards: dict[str, ShardSet]

    @property
    def vocab_size(self) -> int:
        return max(len(self.tokenizer), next(iter(self.shards.values())).manifest.vocab_size)

    @property
    def classes(self) -> tuple[str, ...]:
        return next(iter(self.shards.values())).manifest.classes

    @property
    def pad(self) -> int:
        return special_ids(self.tokenizer)["pad"] or 0

    def dataset(self, split: str, *, stride: int | None = None, length: int | None = None) -> Any:
        """Of a prepared split. stride: of language models, how far the next window is (the whole context)."""
        recipe, shards = self.recipe, self.shards[split]
        length = length or recipe.data.length
        ids = special_ids(self.tokenizer)
        if recipe.data.pack:
            return PackedDocuments(shards, length)
        if recipe.task == "lm":
            return Windows(shards, length, stride=stride, first=ids["eos"])
        if recipe.task == "mlm":
            if self.tokenizer.mask_token_id is None:
                raise BadRecipe("the tokenizer has no token for masks: task='mlm' needs one; use bpe or bytes")
            special = self.tokenizer.all_special_ids
            seed = recipe.seed if split == "train" else recipe.seed + 1
            kind = MaskedTexts if isinstance(self.source, ExampleSource) else MaskedWindows
            return kind(
                shards, length, mask=self.tokenizer.mask_token_id, special=special, seed=seed,
                share=recipe.data.mask_share, blank=self._blank(),
            )  # fmt: skip
        if recipe.task == "classify":
            if recipe.tokenizer.kind == "task":  # its examples are whole as they are
                return LabelledTexts(shards, length, apart=recipe.data.apart, blank=self._blank())
            bos = ids["bos"] if recipe.model.config.get("pooling") == "first" else None
            return LabelledTexts(shards, length, bos=bos, eos=ids["eos"], apart=recipe.data.apart)
        if ids["eos"] is None:
            raise BadRecipe("the tokenizer has no token to end with: translation needs one")
        # targets as in training, whatever is read of the sources: losses are of the same tokens
        return SequencePairs(shards, length, recipe.data.target_length or recipe.data.length, eos=ids["eos"])

    def training_set(self) -> ByEpoch:
        found, collate = self.dataset("train"), self.collator()
        return MaskedByEpoch(found, collate) if isinstance(found, Masked) else ByEpoch(found, collate)

    def collator(self, length: int = 0) -> Callable[[Sequence[dict[str, Tensor]]], dict[str, Tensor]]:
        """length: of the data set that is read, if not as in training."""
        if self.recipe.data.pack:
            return JoinedDocuments(pad=self.pad)
        if self.recipe.task in ("lm", "mlm") and isinstance(self.source, TextSource):
            return PadCollator(pad=self.pad)
        multiple = self.recipe.data.length if self.recipe.data.fill else MULTIPLE
        most = max(length or self.recipe.data.length, self.recipe.data.target_length)  # the model may read no further
        return PadCollator(pad=self.pad, multiple=multiple, most=most, always_mask=not self._one_length())

    def _blank(self) -> int | None:
        return BLACK if self.recipe.data.skip_black else None

    def _one_length(self) -> bool:
        """Pictures: no batch is ever padded, and none needs a mask."""
        if self.recipe.data.skip_black:
            return False
        if not isinstance(self.source, LraSource) or self.recipe.tokenizer.kind != "task":
            return False
        return self.source.even and self.recipe.data.length <= self.source.length

    def identity(self) -> dict[str, dict[str, str]]:
        """Of each split, what its text and its tokens are: a run goes on with these and no others."""
        return {
            name: {"text": part.manifest.text_sha256, "tokenizer": part.manifest.encoder}
            for name, part in self.shards.items()
        }

    def facts(self) -> dict[str, Any]:
        """For run.json and the card: which data, by hash."""
        splits = {
            name: {"text_sha256": s.manifest.text_sha256, "tokens": s.tokens, "bytes": s.manifest.bytes,
                   "documents": s.documents, "examples": s.examples}
            for name, s in self.shards.items()
        }  # fmt: skip
        train = self.shards.get("train")
        return {
            "name": self.source.name, "splits": splits, "tokens": None if train is None else train.tokens,
            "vocab_size": self.vocab_size, "classes": list(self.classes),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedDocuments(PackCollator):
    """Rows of documents as one, with what each place is to predict: the last of a document predicts nothing."""

    def __call__(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = PackCollator.__call__(self, items)
        batch["shift_labels"] = next_token_labels(batch.pop("labels"), batch["cu_seqlens"])
        return batch


def special_ids(tokenizer: Any) -> dict[str, int | None]:
    """pad, bos and eos, whatever a tokenizer calls them."""

    def first(*names: str) -> int | None:
        return next((i for name in names if (i := getattr(tokenizer, f"{name}_token_id", None)) is not None), None)

    eos = first("eos", "sep")
    pad = first("pad")
    return {"pad": eos if pad is None else pad, "bos": first("bos", "cls"), "eos": eos}


def _encoder(recipe: Recipe, source: Source, tokenizer: Any) -> Encoder:
    if recipe.tokenizer.kind != "task":
        return encoder_of(tokenizer)
    assert isinstance(source, LraSource)  # tokenizer_of refuses others
    if not _gives_ids_of(source, tokenizer):
        raise BadRecipe(
            f"the tokenizer, of {len(tokenizer)} tokens, gives other ids than tokenizer.kind='task' of {source.name}: "
            "it is another task's; start from a model of the same task, or set another tokenizer.kind"
        )
    return source.encoder


def _gives_ids_of(source: LraSource, tokenizer: Any) -> bool:
    if source.tokenizer is not None:
        return tokenizer.get_vocab() == source.tokenizer().get_vocab()
    letters = [b"A", b"z"]
    try:  # tokens of several bytes may follow those of one
        found = encoder_of(tokenizer).encode(letters)
    except Exception:  # of the package `tokenizers`, where a letter is no word
        return False
    return [x.tolist() for x in found] == [x.tolist() for x in source.encoder.encode(letters)]


def open_data(
    recipe: Recipe, cache: str | Path, *, splits: Sequence[str] | None = None, tokenizer: Any = None,
    progress: Callable[[Progress], None] = lambda _: None, said: Callable[[str], None] = lambda _: None,
) -> RunData:  # fmt: skip
    """Opens the source, learns or loads the tokenizer, tokenises what is not in the cache yet.

    splits: those to prepare (train and the one of periodic evaluation). tokenizer: that of a run, where there is one.
    """
    source, cache = source_of(recipe), Path(cache)
    wanted = splits or ("train", recipe.data.valid_split)
    for split in wanted:
        source.check_split(split)
    if recipe.data.skip_black and recipe.tokenizer.kind != "task":
        raise BadRecipe(
            f"data.skip_black with tokenizer.kind={recipe.tokenizer.kind!r}: pixels are tokens of kind task"
        )
    tokenizer = tokenizer or tokenizer_of(recipe, source, cache, said)
    encoder = _encoder(recipe, source, tokenizer)
    marks = Marks()
    if isinstance(source, TextSource) and source.document_marks:
        marks = Marks(eos=special_ids(tokenizer)["eos"])
    key = json.dumps([place_of(recipe.data), encoder.fingerprint, marks.bos, marks.eos])
    whole = source.length if isinstance(source, LraSource) and source.even and recipe.tokenizer.kind == "task" else 0
    if recipe.data.length < whole and not recipe.data.skip_black:
        said(f"data.length={recipe.data.length}: of each {whole:,} tokens the rest is not read")
    folder = cache / f"{file_name(source)}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    shards = {
        split: prepare(source, split, encoder, folder, marks=marks, progress=progress, said=said) for split in wanted
    }
    return RunData(recipe=recipe, source=source, tokenizer=tokenizer, shards=shards)
