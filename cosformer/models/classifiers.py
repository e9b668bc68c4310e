"""Heads that name a class: of a sequence, of each token, of a pair of documents."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models.configuration import CosformerConfig
from cosformer.models.losses import class_loss, token_loss
from cosformer.models.model import CosformerModel, CosformerPreTrainedModel, find_offsets
from cosformer.ops.features import sum_dtype

OWN_TO_A_DOCUMENT = ("position_ids", "token_type_ids")


def pool(x: Tensor, mask: Tensor | None, how: str) -> Tensor:
    """[B, E] from x [B, T, E]: mean, first or last of the tokens that are not padding. A row of padding gives 0."""
    if mask is None:
        return {"mean": x.mean(1), "first": x[:, 0], "last": x[:, -1]}[how]
    real = mask.bool()
    if how != "mean":
        count = real.long().cumsum(-1)
        real = real & (count == (1 if how == "first" else count[:, -1:]))
    kept = torch.where(real[..., None], x, 0)  # where, not times: padding may hold anything
    return (kept.sum(1, dtype=sum_dtype(x.dtype)) / real.sum(1, keepdim=True).clamp(min=1)).to(x.dtype)


def pool_packed(x: Tensor, offsets: Tensor, how: str) -> Tensor:
    """[N, E] from N sequences packed into x [1, T, E]."""
    ends = offsets.to(x.device)
    if how == "first":
        return x[0, ends[:-1]]
    if how == "last":
        return x[0, ends[1:] - 1]
    sequence = torch.repeat_interleave(ends.diff(), output_size=x.shape[1])
    dtype = sum_dtype(x.dtype)
    sums = x.new_zeros(len(offsets) - 1, x.shape[2], dtype=dtype).index_add_(0, sequence, x[0].to(dtype))
    return (sums / ends.diff()[:, None]).to(x.dtype)


def without_cache(kwargs: dict[str, Any]) -> dict[str, Any]:
    """kwargs less use_cache, which libraries pass to every model; asked for, there is none to give."""
    if kwargs.pop("use_cache", None):
        raise ValueError("use_cache=True for a classifier: it reads whole sequences and gives no cache; leave it out")
    return kwargs


class CosformerForSequenceClassification(CosformerPreTrainedModel):
    """A class, several, or a number for each sequence, from what `config.pooling` sums up of it."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        self.model = CosformerModel(config)
        between = config.classifier_hidden_size
        self.hidden = nn.Linear(config.hidden_size, between) if between else None
        self.score = nn.Linear(between or config.hidden_size, config.num_labels or 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, labels: Tensor | None = None,
        cu_seqlens: Tensor | None = None, num_items_in_batch: Tensor | int | None = None, **kwargs: Any,
    ) -> SequenceClassifierOutput:  # fmt: skip
        """logits [B, num_labels], [N, num_labels] for N packed sequences; labels [B], [N], or as logits if several."""
        out = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, use_cache=False,
            cu_seqlens=cu_seqlens, return_dict=True, **without_cache(kwargs),
        )  # fmt: skip
        x, how = out.last_hidden_state, self.config.pooling
        offsets = find_offsets(x, attention_mask, position_ids, None, cu_seqlens, kwargs)
        pooled = pool(x, attention_mask, how) if offsets is None else pool_packed(x, offsets, how)
        pooled = F.dropout(pooled, self.config.classifier_dropout, self.training)
        logits = self.score(pooled if self.hidden is None else F.relu(self.hidden(pooled)))
        loss: Any = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = class_loss(logits, labels, self.config, smoothing=smoothing, num_items_in_batch=num_items_in_batch)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


class CosformerForTokenClassification(CosformerPreTrainedModel):
    """A class for each token."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        self.model = CosformerModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels or 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, labels: Tensor | None = None,
        cu_seqlens: Tensor | None = None, num_items_in_batch: Tensor | int | None = None, **kwargs: Any,
    ) -> TokenClassifierOutput:  # fmt: skip
        """logits [B, T, num_labels]; labels [B, T], −100 where there is none."""
        out = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, use_cache=False,
            cu_seqlens=cu_seqlens, return_dict=True, **without_cache(kwargs),
        )  # fmt: skip
        logits = self.score(F.dropout(out.last_hidden_state, self.config.classifier_dropout, self.training))
        loss: Any = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = token_loss(logits, labels, smoothing=smoothing, num_items_in_batch=num_items_in_batch)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


class CosformerForPairClassification(CosformerPreTrainedModel):
    """A class for each pair of documents: both go through one encoder, apart (two towers).

    As for retrieval in the Long-Range Arena: an MLP reads [a, b, a·b, a − b] of the two pooled documents.
    """

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        self.model = CosformerModel(config)
        between = config.classifier_hidden_size or config.hidden_size
        self.pair = nn.Linear(4 * config.hidden_size, between)
        self.score = nn.Linear(between, config.num_labels or 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        other_input_ids: Tensor | None = None, other_attention_mask: Tensor | None = None,
        labels: Tensor | None = None, inputs_embeds: Tensor | None = None, other_inputs_embeds: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None, **kwargs: Any,
    ) -> SequenceClassifierOutput:  # fmt: skip
        """logits [B, num_labels] for documents input_ids [B, T] and other_input_ids [B, S]; labels [B].

        position_ids and token_type_ids are of the first document, other_position_ids and other_token_type_ids of the
        second.
        """
        if (other_input_ids is None) == (other_inputs_embeds is None):
            raise ValueError("pass the second document of each pair: other_input_ids, or other_inputs_embeds")
        if kwargs.pop("output_hidden_states", None):
            raise ValueError(
                "output_hidden_states=True for pairs: two documents of unequal lengths have no common hidden states; "
                "call the encoder, `model.model`, on each"
            )
        own = {name: kwargs.pop(name, None) for name in OWN_TO_A_DOCUMENT}
        others = {name: kwargs.pop(f"other_{name}", None) for name in OWN_TO_A_DOCUMENT}
        kwargs = without_cache(kwargs)
        first = self._document(input_ids, attention_mask, inputs_embeds, own | kwargs)
        second = self._document(other_input_ids, other_attention_mask, other_inputs_embeds, others | kwargs)
        both = torch.cat([first, second, first * second, first - second], -1)
        hidden = self.pair(F.dropout(both, self.config.classifier_dropout, self.training))
        hidden = F.relu(hidden) if self.config.classifier_hidden_size else F.gelu(hidden)
        logits = self.score(hidden)
        loss: Any = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = class_loss(logits, labels, self.config, smoothing=smoothing, num_items_in_batch=num_items_in_batch)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _document(
        self, ids: Tensor | None, mask: Tensor | None, embeds: Tensor | None, kwargs: dict[str, Any]
    ) -> Tensor:
        x: Any = ids if embeds is None else embeds
        if (
            x is not None
            and find_offsets(x, mask, kwargs["position_ids"], None, kwargs.get("cu_seqlens"), kwargs) is not None
        ):
            raise ValueError(
                "packed sequences (cu_seqlens, or position_ids that start again) for pairs: each row is one document; "
                "pad them instead"
            )
        out = self.model(ids, mask, inputs_embeds=embeds, use_cache=False, return_dict=True, **kwargs)
        return pool(out.last_hidden_state, mask, self.config.pooling)
