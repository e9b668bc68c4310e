"""From examples to a batch: padded to a multiple, or packed into one row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cosformer.tasks.datasets.windows import IGNORED
from cosformer.tasks.shards.rows import Rows

Item = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class PadCollator:
    """Pads every field to its longest, rounded up to a multiple; labels with −100. Scalars are stacked.

    Fields of tokens get a mask beside them (attention_mask, other_attention_mask); it is left out where nothing was
    padded and `always_mask` is False, because a model without a mask has less to do.
    """

    pad: int
    multiple: int = 1
    most: int = 0
    """Tokens that rounding does not pass, such as the horizon of a model; 0: no limit."""
    left: bool = False
    always_mask: bool = False

    def __post_init__(self) -> None:
        if self.multiple < 1:
            raise ValueError(f"multiple={self.multiple}: 1 for no rounding")
        if self.most < 0:
            raise ValueError(f"most={self.most}: 0 for no limit")

    def width(self, longest: int) -> int:
        rounded = -(-max(1, longest) // self.multiple) * self.multiple
        return max(longest, min(rounded, self.most)) if self.most else rounded

    def __call__(self, items: Sequence[Item]) -> Item:
        batch: Item = {}
        for name in items[0]:
            rows = [item[name] for item in items]
            if rows[0].dim() == 0:
                batch[name] = torch.stack(rows)
                continue
            tokens = name.endswith("input_ids")
            batch[name] = self._padded(rows, self.pad if tokens else 0 if name == "position_ids" else IGNORED)
            longest = batch[name].shape[1]
            if tokens and (self.always_mask or any(len(row) != longest for row in rows)):
                mask = name.removesuffix("input_ids") + "attention_mask"
                batch[mask] = self._padded([torch.ones_like(row) for row in rows], 0)
        return batch

    def join(self, fields: Mapping[str, Rows | Tensor]) -> Item:
        """The same for a batch that was read at once."""
        batch: Item = {}
        for name, rows in fields.items():
            if isinstance(rows, Tensor):
                batch[name] = rows
                continue
            tokens = name.endswith("input_ids")
            fill = self.pad if tokens else 0 if name == "position_ids" else IGNORED
            batch[name] = rows.padded(fill, self.width(rows.longest), left=self.left)
            if tokens and (self.always_mask or bool((rows.lengths != batch[name].shape[1]).any())):
                ones = Rows(np.ones_like(rows.values), rows.lengths)
                mask = name.removesuffix("input_ids") + "attention_mask"
                batch[mask] = ones.padded(0, self.width(rows.longest), left=self.left)
        return batch

    def _padded(self, rows: list[Tensor], value: int) -> Tensor:
        longest = self.width(max(len(row) for row in rows))
        out = rows[0].new_full((len(rows), longest), value)  # [B, T]
        for line, row in zip(out, rows, strict=True):
            place = slice(longest - len(row), None) if self.left else slice(0, len(row))
            line[place] = row
        return out


@dataclass(frozen=True, kw_only=True, slots=True)
class PackCollator:
    """Joins packed rows into one: input_ids, labels, position_ids [1, total], cu_seqlens [sequences + 1].

    multiple: the total is rounded up with a last sequence of padding that predicts nothing.
    """

    pad: int
    multiple: int = 1

    def __call__(self, items: Sequence[Item]) -> Item:
        offsets = [torch.zeros(1, dtype=torch.int32)]
        total = 0
        for item in items:
            offsets.append(item["cu_seqlens"][1:] + total)
            total += len(item["input_ids"])
        extra = -total % self.multiple
        fill = {"input_ids": self.pad, "labels": IGNORED}
        batch: Item = {}
        for name in ("input_ids", "labels", "position_ids"):
            tail = torch.full((extra,), fill[name]) if name in fill else torch.arange(extra)
            batch[name] = torch.cat([*(item[name] for item in items), tail])[None]  # [1, total]
        if extra:
            offsets.append(torch.tensor([total + extra], dtype=torch.int32))
        batch["cu_seqlens"] = torch.cat(offsets)
        return batch
