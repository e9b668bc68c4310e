"""Language modelling on running text: windows of a fixed context, each token to be predicted once."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cosformer.tasks.shards.shard_set import ShardSet

IGNORED = -100


class Windows(Dataset[dict[str, Tensor]]):
    """Window i reads `context` tokens and predicts the one after each; it counts only what no earlier window counted.

    stride: how far the next window is; the context itself for training, less for evaluation, where every token counted
    (but those of the first window) has more than context − stride tokens before it. first: a token put before the text
    (<bos> or <eos>), so that the text's own first token is predicted too; None leaves that one out.

    Items: input_ids [context] and shift_labels [context], what each place is to predict, −100 where it does not count.
    The last window is moved back to be whole. Only a text shorter than the context makes a shorter window.
    """

    def __init__(self, shards: ShardSet, context: int, *, stride: int | None = None, first: int | None = None) -> None:
        stride = context if stride is None else stride
        if context < 1 or not 1 <= stride <= context:
            raise ValueError(
                f"context={context}, stride={stride}: 1 ≤ stride ≤ context, or tokens would be passed over"
            )
        self.shards, self.context, self.stride, self.first = shards, context, stride, first
        self.targets = shards.tokens - (first is None)
        """Tokens that are predicted."""
        if self.targets < 1:
            raise ValueError(f"{shards.folder}: {shards.tokens} tokens: there is none to predict; give more text")

    def __len__(self) -> int:
        return 1 + max(0, -(-(self.targets - self.context) // self.stride))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        # In places of targets: this window holds [begin, end) and counts from `fresh` on
        end = min(self.context + index * self.stride, self.targets)
        begin = max(0, end - self.context)
        fresh = 0 if index == 0 else self.context + (index - 1) * self.stride
        ids = torch.from_numpy(self._text(begin, end + 1).astype(np.int64))
        labels = ids[1:].clone()
        labels[: fresh - begin] = IGNORED
        return {"input_ids": ids[:-1], "shift_labels": labels}

    def _text(self, start: int, stop: int) -> np.ndarray:
        """Tokens of the text with `first` before it."""
        if self.first is None:
            return self.shards.read(start, stop)
        text = self.shards.read(max(0, start - 1), stop - 1)
        return text if start else np.concatenate([np.asarray([self.first], text.dtype), text])
