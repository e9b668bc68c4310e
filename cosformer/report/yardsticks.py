"""Bits per byte of a trained model next to gzip's and an n-gram's: of the same bytes, which none of them has seen."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from cosformer.tasks import ByteNgram, LossSum, TextSource, gzip_bits_per_byte
from cosformer.tasks.encoders import SPECIALS
from cosformer.training import RunData

ORDER = 6
OURS = "this model"


def held_out_bits(
    model: Any, data: RunData, *, split: str = "test", most: int = 1 << 20, counted: int = 1 << 24,
    said: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Of the first `most` bytes of a split or a little more: whole windows of the model's context.

    counted: bytes of training text the n-gram counts. For models of bytes: what a token spells is then known.
    """
    if data.recipe.tokenizer.kind != "bytes" or not isinstance(data.source, TextSource):
        raise ValueError("bits per byte of a part of a text are told for models of bytes: use `cosformer eval`")
    windows, shards = data.dataset(split), data.shards[split]
    count = min(len(windows), -(-most // windows.context))
    said(f"the model reads {split} text")
    loss = LossSum()
    for first in range(0, count, 16):
        items = [windows[i] for i in range(first, min(first + 16, count))]
        loss += _loss(model, items)
    tokens = shards.read(0, loss.tokens)
    text = [bytes(part) for part in _parts(tokens.tolist())]
    length = sum(len(part) for part in text)
    found = {OURS: loss.bits_per_byte(length)}
    said(f"a {ORDER}-gram counts the training text")
    ngram = ByteNgram(_start(data.source.pieces("train"), counted), order=ORDER)
    found[f"{ORDER}-gram"] = ngram.bits_per_byte(text)
    found["gzip -9"] = gzip_bits_per_byte(text)
    return {
        "split": split, "bytes": length, "bits_per_byte": found,
        "text": b"\n".join(text)[:400].decode("utf-8", "replace"),
        "how": f"All read the same bytes of the {split} split. The model sees at most {windows.context} bytes before "
        f"each; the {ORDER}-gram (Witten–Bell) has counted the training text; gzip has seen nothing else.",
    }  # fmt: skip


@torch.no_grad()
def _loss(model: Any, items: list[dict[str, Tensor]]) -> LossSum:
    """Summed over the windows, which are of one length (but for a text shorter than one)."""
    ids, labels = (torch.stack([item[name] for item in items]) for name in ("input_ids", "shift_labels"))
    ids, labels = ids.to(model.device), labels.to(model.device)
    one = torch.ones((), device=model.device)  # divided by one: the sum
    nats = float(model(ids, shift_labels=labels, num_items_in_batch=one, use_cache=False).loss)
    if not math.isfinite(nats):
        raise ValueError(f"the model's loss is {nats}: it has no bits per byte")
    return LossSum(nats=nats, tokens=int((labels >= 0).sum()))


def _parts(tokens: list[int]) -> Iterable[list[int]]:
    """Documents: what lies between marks, which are no bytes."""
    part: list[int] = []
    for token in tokens:
        if token >= SPECIALS:
            part.append(token - SPECIALS)
        elif part:
            yield part
            part = []
    if part:
        yield part


def _start(pieces: Iterable[Any], most: int) -> bytes:
    found, length = [], 0
    for piece in pieces:
        found.append(piece.data)
        length += len(piece.data)
        if length >= most:
            break
    return b"".join(found)
