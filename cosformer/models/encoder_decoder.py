"""An encoder and a decoder of the same blocks. Where those are cosFormer, so is the attention from one to the other."""

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models.configuration import CosformerConfig
from cosformer.models.generation import masks_for_generate
from cosformer.models.losses import IGNORED, token_loss
from cosformer.models.model import CosformerModel, CosformerPreTrainedModel


class TwoStacks(CosformerPreTrainedModel):
    """What transformers does to one stack, done to both."""

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Of the encoder, as transformers knows it, and of the decoder, which has its own where they are not tied."""
        resized: Any = super().resize_token_embeddings(*args, **kwargs)
        decoder: Any = self.get_decoder()
        if decoder.embed_tokens.num_embeddings != resized.num_embeddings:
            mean = {"mean_resizing": kwargs["mean_resizing"]} if "mean_resizing" in kwargs else {}
            decoder.resize_token_embeddings(resized.num_embeddings, **mean)
        for stack in (self.get_encoder(), decoder):
            stack.config.vocab_size = self.config.vocab_size
        return resized


class CosformerEncoderDecoderModel(TwoStacks):
    """The two stacks, without a head."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        if not config.is_encoder_decoder:
            raise ValueError(
                "an encoder and a decoder are to be made, but the config describes one stack: use "
                "CosformerConfig(is_encoder_decoder=True)"
            )
        self.encoder = CosformerModel(config.stack("encoder"))
        self.decoder = CosformerModel(config.stack("decoder"))
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> CosformerModel:
        return self.encoder

    def get_decoder(self) -> CosformerModel:
        return self.decoder

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.encoder.embed_tokens = value
        if self.config.tie_word_embeddings:
            self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        decoder_position_ids: Tensor | None = None, encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None, inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None, use_cache: bool | None = None,
        output_hidden_states: bool | None = None, **kwargs: Any,
    ) -> Seq2SeqModelOutput:  # fmt: skip
        """last_hidden_state [B, T, E] of the decoder, which reads input_ids [B, S] through the encoder.

        token_type_ids [B, S] are of what the encoder reads; the decoder's tokens are all of type 0.
        """
        if kwargs.get("cu_seqlens") is not None or kwargs.get("cu_seq_lens_q") is not None:
            raise ValueError("cu_seqlens in an encoder–decoder: sources and targets come in pairs; pad them instead")
        if kwargs.pop("position_ids", None) is not None:
            raise ValueError(
                "position_ids in an encoder–decoder: it has two sequences; pass decoder_position_ids for the "
                "target, and encoder_outputs of an encoder called with its own position_ids for the source"
            )
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(
                "neither labels nor decoder_input_ids: the decoder has nothing to read. Where labels are taken away "
                "before the model sees them (label_smoothing_factor of Trainer), give DataCollatorForSeq2Seq model=, "
                "or set label_smoothing in the config instead"
            )
        types = kwargs.pop("token_type_ids", None)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, inputs_embeds=inputs_embeds, output_hidden_states=output_hidden_states,
                token_type_ids=types, return_dict=True, **kwargs,
            )  # fmt: skip
        assert encoder_outputs is not None
        encoded = encoder_outputs[0]
        out = self.decoder(
            decoder_input_ids, decoder_attention_mask, decoder_position_ids, past_key_values, decoder_inputs_embeds,
            use_cache, encoder_hidden_states=encoded, encoder_attention_mask=attention_mask,
            output_hidden_states=output_hidden_states, return_dict=True, **kwargs,
        )  # fmt: skip
        return Seq2SeqModelOutput(
            last_hidden_state=out.last_hidden_state, past_key_values=out.past_key_values,
            decoder_hidden_states=out.hidden_states, encoder_last_hidden_state=encoded,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
        )  # fmt: skip


class CosformerForConditionalGeneration(TwoStacks, GenerationMixin):
    """Writes one sequence after reading another."""

    _tied_weights_keys = {  # noqa: RUF012  (as transformers declares it)
        "model.decoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
        "lm_head.weight": "model.encoder.embed_tokens.weight",
    }
    create_masks_for_generate = staticmethod(masks_for_generate)

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        self.model = CosformerEncoderDecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> CosformerModel:
        return self.model.encoder

    def get_decoder(self) -> CosformerModel:
        return self.model.decoder

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        decoder_position_ids: Tensor | None = None, encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None, inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None, labels: Tensor | None = None, use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0, num_items_in_batch: Tensor | int | None = None, **kwargs: Any,
    ) -> Seq2SeqLMOutput:  # fmt: skip
        """labels [B, T] are what the decoder should write; without decoder_input_ids it reads them, one place late."""
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        out = self.model(
            input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, decoder_position_ids,
            encoder_outputs, past_key_values, inputs_embeds, decoder_inputs_embeds, use_cache, return_dict=True,
            **kwargs,
        )  # fmt: skip
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(out.last_hidden_state[:, keep])
        loss: Any = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = token_loss(logits, labels[:, keep], smoothing=smoothing, num_items_in_batch=num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss, logits=logits, past_key_values=out.past_key_values,
            decoder_hidden_states=out.decoder_hidden_states, encoder_last_hidden_state=out.encoder_last_hidden_state,
            encoder_hidden_states=out.encoder_hidden_states,
        )  # fmt: skip

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The start token, then labels without their last."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None:
            raise ValueError(
                "labels without decoder_input_ids, and config.decoder_start_token_id is None: the decoder must begin "
                "somewhere; set it in the config"
            )
        ids = labels.new_full(labels.shape, start)
        ids[:, 1:] = labels[:, :-1]
        return ids.masked_fill(ids == IGNORED, start if pad is None else pad)
