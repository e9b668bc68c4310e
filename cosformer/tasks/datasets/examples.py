"""Examples of one or two texts: classification, and sequence to sequence."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cosformer.tasks.encoders import Ids
from cosformer.tasks.shards.rows import Rows, lit, marked
from cosformer.tasks.shards.shard_set import ShardSet


class _Examples(Dataset[dict[str, Tensor]]):
    def __init__(self, shards: ShardSet, wanted: str) -> None:
        self.shards, manifest = shards, shards.manifest
        if not manifest.texts:
            raise ValueError(f"{shards.folder} holds running text, not examples: {wanted}")

    def __len__(self) -> int:
        return self.shards.examples

    def _texts(self, index: int) -> list[Ids]:
        if not 0 <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        count = self.shards.manifest.texts
        return [self.shards.read(*self.shards.document(index * count + i)) for i in range(count)]


class LabelledTexts(_Examples):
    """A text, or two joined as one, and its class. Items: input_ids [n ≤ length], labels [].

    bos and eos, where given, stand before the text and after each of the two. A text that is too long loses its end; of
    two, the longer one first. apart: two texts stay two (other_input_ids), for a model that reads them one by one.
    blank: a token that is left out, such as a black pixel; position_ids [n] then tell where the others were.
    """

    def __init__(
        self, shards: ShardSet, length: int, *, bos: int | None = None, eos: int | None = None, apart: bool = False,
        blank: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(shards, "classification needs a source with labels")
        if not shards.manifest.classes:
            raise ValueError(f"{shards.folder} holds pairs without labels: use SequencePairs")
        if apart and shards.manifest.texts != 2:
            raise ValueError(f"apart=True, but {shards.folder} has one text per example: leave it out")
        if blank is not None and (shards.manifest.texts != 1 or bos is not None or eos is not None):
            raise ValueError(f"blank={blank}: tokens are left out of single texts without marks")
        self.length, self.apart, self.blank = length, apart, blank
        self.bos, self.eos = _some(bos), _some(eos)
        count = 1 if apart else shards.manifest.texts
        self.room = length - len(self.bos) - count * len(self.eos)
        if self.room < count:
            least = length - self.room + count
            raise ValueError(f"length={length} leaves no room for text beside the marks: use at least {least}")

    @property
    def classes(self) -> tuple[str, ...]:
        return self.shards.manifest.classes

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.blank is not None:
            rows = self._lit([index])
            item = {name: torch.from_numpy(found.values[0]) for name, found in rows.items()}
            return {**item, "labels": torch.tensor(self.shards.label(index))}
        texts = self._texts(index)
        item = {"labels": torch.tensor(self.shards.label(index))}
        if self.apart:
            one, other = (self._joined([text]) for text in texts)
            return {"input_ids": one, "other_input_ids": other, **item}
        return {"input_ids": self._joined(texts), **item}

    def read_rows(self, indices: Sequence[int]) -> dict[str, Rows | Tensor] | None:
        """These items at once, for PadCollator.join; None where two texts are joined: those are read one by one."""
        count = self.shards.manifest.texts
        if count > 1 and not self.apart:
            return None
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"example {index} of {len(self)}")
        labels = torch.from_numpy(self.shards.labels_at(np.asarray(indices)))
        if self.blank is not None:
            return {**self._lit(indices), "labels": labels}
        found: dict[str, Rows | Tensor] = {}
        documents = np.asarray(indices, np.int64) * count
        for i, name in enumerate(("input_ids", "other_input_ids")[:count]):
            spans = self.shards.spans(documents + i)
            spans[:, 1] = np.minimum(spans[:, 1], spans[:, 0] + self.room)
            found[name] = marked(self.shards.rows(spans), self.bos, self.eos)
        return {**found, "labels": labels}

    def _lit(self, indices: Sequence[int]) -> dict[str, Rows]:
        """Of single texts, all but what is blank."""
        assert self.blank is not None
        spans = self.shards.spans(np.asarray(indices, np.int64))
        return lit(self.shards.stored_rows(spans), spans[:, 1] - spans[:, 0], self.blank, self.length)

    def _joined(self, texts: list[Ids]) -> Tensor:
        lengths = fit([len(text) for text in texts], self.room)
        parts = [self.bos]
        for text, length in zip(texts, lengths, strict=True):
            parts += [text[:length], self.eos]
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def fit(lengths: list[int], room: int) -> list[int]:
    """Lengths that fit together: the longest are cut down to one level, shorter ones stay."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    short, half = min(lengths), room // 2
    if short <= half:
        return [room - short if length != short else short for length in lengths]
    return [room - half, half]


def _some(token: int | None) -> Ids:
    return np.asarray([] if token is None else [token], np.int64)


class SequencePairs(_Examples):
    """A source and its target, each cut to its length and ended by eos. Items: input_ids [S], labels [T]."""

    def __init__(self, shards: ShardSet, source_length: int, target_length: int, *, eos: int) -> None:
        super().__init__(shards, "sequence to sequence needs a source of pairs")
        if shards.manifest.texts != 2:
            raise ValueError(
                f"{shards.folder} has {shards.manifest.texts} text per example: a source and a target needed"
            )
        if min(source_length, target_length) < 2:
            raise ValueError(f"lengths {source_length}, {target_length}: at least a token and its end")
        self.lengths, self.eos = (source_length, target_length), np.asarray([eos])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ends = [
            torch.from_numpy(np.concatenate([text[: length - 1], self.eos]).astype(np.int64))
            for text, length in zip(self._texts(index), self.lengths, strict=True)
        ]
        return {"input_ids": ends[0], "labels": ends[1]}
