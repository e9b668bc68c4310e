"""The shared model tests of transformers itself, run against these models, where their source is at hand.

They are no part of the wheel. Unpack the source release of the installed version and say where it is:

    pip download --no-deps --no-binary :all: transformers==$(python -c 'import transformers as t; print(t.__version__)')
    tar xzf transformers-*.tar.gz && TRANSFORMERS_SOURCE=transformers-5.22.2 pytest tests/models/test_library_suite.py

That release has tests/test_modeling_common.py but no tests/generation nor tests/exporters: those mixins are left out
(test_generate.py and test_compiling.py are ours). The suite is blunt, so the other files here are the ones to trust.
"""

import importlib
import os
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_config

from cosformer.models import (
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
    CosformerModel,
)

SOURCE = os.environ.get("TRANSFORMERS_SOURCE")
if not SOURCE:
    pytest.skip("TRANSFORMERS_SOURCE does not name an unpacked source release", allow_module_level=True)


def load_suite(source: Path) -> Any:
    """tests.test_modeling_common, with empty mixins for the folders that the release leaves out."""
    package = types.ModuleType("transformers_tests")
    package.__path__ = [str(source / "tests")]
    sys.modules["transformers_tests"] = package
    for name, mixin in (
        ("exporters.test_export", "ExportTesterMixin"),
        ("generation.test_utils", "GenerationTesterMixin"),
    ):
        folder, _, file = name.partition(".")
        if not (source / "tests" / folder / f"{file}.py").exists():
            sys.modules[f"transformers_tests.{folder}"] = types.ModuleType(f"transformers_tests.{folder}")
            stub = types.ModuleType(f"transformers_tests.{name}")
            setattr(stub, mixin, type(mixin, (), {}))
            sys.modules[f"transformers_tests.{name}"] = stub
    return importlib.import_module("transformers_tests.test_modeling_common")


SUITE = load_suite(Path(SOURCE))
for _mapping, _cls in {
    "MODEL_MAPPING_NAMES": CosformerModel,
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": CosformerForCausalLM,
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": CosformerForMaskedLM,
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": CosformerForSequenceClassification,
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": CosformerForTokenClassification,
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": CosformerForConditionalGeneration,
}.items():
    getattr(SUITE, _mapping)["cosformer"] = _cls.__name__  # the suite chooses labels by the name of a class


class Asked:
    """What the suite asks for: a small config, and inputs for it."""

    batch_size, seq_length, is_training, vocab_size = 3, 7, True, 61
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def __init__(self, parent: Any, **options: Any) -> None:
        self.parent, self.options = parent, options

    def get_config(self) -> Any:
        return small_config(initializer_range=0.02, bos_token_id=1, eos_token_id=2, **self.options)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        ids = SUITE.ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        config = self.get_config()
        if config.is_encoder_decoder:
            inputs |= {"decoder_input_ids": ids.clone(), "decoder_attention_mask": torch.ones_like(ids)}
        return config, inputs

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


class Common(SUITE.ModelTesterMixin):
    options: dict[str, Any]
    has_attentions = False  # linear attention never forms the weights
    test_resize_embeddings = True
    test_head_masking = False
    pipeline_model_mapping: Any = None

    def setUp(self) -> None:
        self.model_tester = Asked(self, **self.options)


class TestDecoder(Common, SUITE.GenerationTesterMixin, unittest.TestCase):
    options = {"tie_word_embeddings": True}  # noqa: RUF012
    all_model_classes = (CosformerModel, CosformerForCausalLM, CosformerForSequenceClassification)


class TestHybridDecoder(Common, SUITE.GenerationTesterMixin, unittest.TestCase):
    options = {"attention": ["cosformer", "softmax"], "positions": "rotary"}  # noqa: RUF012
    all_model_classes = (CosformerModel, CosformerForCausalLM)


class TestEncoder(Common, unittest.TestCase):
    options = {"causal": False, "tie_word_embeddings": True, "positions": "learned"}  # noqa: RUF012
    all_model_classes = (
        CosformerModel,
        CosformerForMaskedLM,
        CosformerForSequenceClassification,
        CosformerForTokenClassification,
    )


class TestEncoderDecoder(Common, SUITE.GenerationTesterMixin, unittest.TestCase):
    options = {"is_encoder_decoder": True, "decoder_start_token_id": 3, "tie_word_embeddings": True}  # noqa: RUF012
    is_encoder_decoder = True
    all_model_classes = (CosformerForConditionalGeneration,)
