"""Heads that predict tokens: the next one, or the masked ones."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models.blocks import make_norm
from cosformer.models.configuration import CosformerConfig
from cosformer.models.generation import masks_for_generate
from cosformer.models.losses import next_token_labels, token_loss
from cosformer.models.model import CosformerModel, CosformerPreTrainedModel, find_offsets
from cosformer.models.one_vs_each import one_vs_each_loss


class CosformerForCausalLM(CosformerPreTrainedModel, GenerationMixin):
    """Predicts the next token; generates."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012  (as transformers declares it)
    create_masks_for_generate = staticmethod(masks_for_generate)

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        if not config.causal:
            raise ValueError(
                "CosformerForCausalLM with causal=False: the next token would be seen before it is predicted; use "
                "CosformerConfig(causal=True), or CosformerForMaskedLM"
            )
        self.model = CosformerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None, past_key_values: Cache | None = None, inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None, use_cache: bool | None = None, logits_to_keep: int | Tensor = 0,
        cu_seqlens: Tensor | None = None, num_items_in_batch: Tensor | int | None = None, **kwargs: Any,
    ) -> CausalLMOutputWithPast:  # fmt: skip
        """labels [B, T] as input_ids, −100 where nothing is to be predicted. logits_to_keep: the last so many.

        With loss="one_vs_each", a training pass with labels has no logits: that they are not made is its use.

        shift_labels [B, T]: instead, what each place is to predict, where a sequence is split over processes.
        """
        shift_labels = kwargs.pop("shift_labels", None)  # no argument of its own: Trainer would wait for it
        out = self.model(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, cu_seqlens=cu_seqlens,
            return_dict=True, **kwargs,
        )  # fmt: skip
        x = out.last_hidden_state
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        loss: Any = None
        if shift_labels is None and labels is not None:
            offsets = find_offsets(x, attention_mask, position_ids, past_key_values, cu_seqlens, kwargs)
            shift_labels = next_token_labels(labels, offsets)
        logits: Any = None
        if shift_labels is not None and self.training and self.config.loss == "one_vs_each":
            loss = one_vs_each_loss(
                x[:, keep], self.lm_head.weight, shift_labels[:, keep], samples=self.config.loss_samples or None,
                num_items_in_batch=num_items_in_batch,
            )  # fmt: skip
        else:
            logits = self.lm_head(x[:, keep])
        if loss is None and shift_labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = token_loss(logits, shift_labels[:, keep], smoothing=smoothing, num_items_in_batch=num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=out.past_key_values, hidden_states=out.hidden_states
        )


class MaskedLMHead(nn.Module):
    """decoder(norm(gelu(dense(x)))), as BERT and RoBERTa."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = make_norm(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        # under autocast the product is lower than the norm's weight, for which torch's RMSNorm has no fused kernel
        return self.decoder(self.norm(F.gelu(self.dense(x)).to(self.dense.weight.dtype)))


class CosformerForMaskedLM(CosformerPreTrainedModel):
    """Predicts tokens that were masked, from both sides."""

    _tied_weights_keys = {"lm_head.decoder.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        if config.causal:
            raise ValueError(
                "CosformerForMaskedLM with causal=True: a masked token is filled in from both sides; use "
                "CosformerConfig(causal=False), or CosformerForCausalLM"
            )
        self.model = CosformerModel(config)
        self.lm_head = MaskedLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, labels: Tensor | None = None,
        cu_seqlens: Tensor | None = None, num_items_in_batch: Tensor | int | None = None, **kwargs: Any,
    ) -> MaskedLMOutput:  # fmt: skip
        """labels [B, T]: the true token where it was masked, −100 elsewhere."""
        out = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, cu_seqlens=cu_seqlens,
            return_dict=True, **kwargs,
        )  # fmt: skip
        logits = self.lm_head(out.last_hidden_state)
        loss: Any = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = token_loss(logits, labels, smoothing=smoothing, num_items_in_batch=num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
