"""Decoder, encoder, encoder–decoder as models of transformers. Importing this registers them with its Auto classes."""

import cosformer.models.requirement  # noqa: F401  isort: skip  (before transformers is asked for more)
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cosformer.models.kinds import KINDS, AttentionKind, register_attention  # isort: skip  (before the kinds themselves)
from cosformer.models.cache import StateLayer
from cosformer.models.classifiers import (
    CosformerForPairClassification,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
)
from cosformer.models.configuration import CosformerConfig
from cosformer.models.cosformer_kind import CosformerKind
from cosformer.models.decoding import GraphDecoder, Sampling
from cosformer.models.encoder_decoder import CosformerEncoderDecoderModel, CosformerForConditionalGeneration
from cosformer.models.language_models import CosformerForCausalLM, CosformerForMaskedLM
from cosformer.models.model import CosformerModel, CosformerPreTrainedModel
from cosformer.models.softmax_kind import SoftmaxKind
from cosformer.models.tokenizers import byte_tokenizer, train_tokenizer

__all__ = [
    "KINDS",
    "AttentionKind",
    "CosformerConfig",
    "CosformerEncoderDecoderModel",
    "CosformerForCausalLM",
    "CosformerForConditionalGeneration",
    "CosformerForMaskedLM",
    "CosformerForPairClassification",
    "CosformerForSequenceClassification",
    "CosformerForTokenClassification",
    "CosformerKind",
    "CosformerModel",
    "CosformerPreTrainedModel",
    "GraphDecoder",
    "Sampling",
    "SoftmaxKind",
    "StateLayer",
    "byte_tokenizer",
    "register_attention",
    "train_tokenizer",
]

AutoConfig.register("cosformer", CosformerConfig, exist_ok=True)
AutoModel.register(CosformerConfig, CosformerModel, exist_ok=True)
AutoModelForCausalLM.register(CosformerConfig, CosformerForCausalLM, exist_ok=True)
# Trainer's own label smoothing asks this list, not the registry, whether labels are those of the next token
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault("cosformer", CosformerForCausalLM.__name__)
AutoModelForMaskedLM.register(CosformerConfig, CosformerForMaskedLM, exist_ok=True)
AutoModelForSeq2SeqLM.register(CosformerConfig, CosformerForConditionalGeneration, exist_ok=True)
AutoModelForSequenceClassification.register(CosformerConfig, CosformerForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(CosformerConfig, CosformerForTokenClassification, exist_ok=True)
