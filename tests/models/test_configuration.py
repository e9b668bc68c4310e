"""CosformerConfig: presets, what is filled in, what is saved, and what is refused with which words."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from small_models import small_config, tokens
from transformers import AutoConfig

from cosformer.models import (
    KINDS,
    AttentionKind,
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerModel,
    register_attention,
)


def test_presets_make_the_models_they_are_named_for() -> None:
    with torch.device("meta"):
        lm, roberta = CosformerForCausalLM(CosformerConfig.paper_lm()), CosformerModel(CosformerConfig.paper_roberta())
        modern = CosformerForCausalLM(CosformerConfig.modern(hidden_size=768, num_hidden_layers=12))
    assert 44e6 < sum(p.numel() for p in lm.parameters()) < 45e6
    assert 124e6 < sum(p.numel() for p in roberta.parameters()) < 125e6  # RoBERTa base: 124.6M with its pooler
    assert modern.config.mlp == "swiglu"
    assert modern.config.intermediate_size == 2048
    assert modern.model.layers[0].mlp.up_proj.bias is None
    assert CosformerConfig.paper_lm(horizon=9).horizon == 9


def test_what_is_left_out_is_filled_in() -> None:
    config = CosformerConfig(hidden_size=96, num_attention_heads=6)
    assert (config.num_key_value_heads, config.head_dim, config.intermediate_size) == (6, 16, 384)
    assert config.max_position_embeddings == config.horizon == 4096
    assert config.attentions == ["cosformer"] * 8
    assert config.layer_types == ["cosformer_attention"] * 8
    assert CosformerConfig(attention=["softmax", "cosformer"], num_hidden_layers=2).layer_types == [
        "full_attention",
        "cosformer_attention",
    ]


def test_only_what_bounds_the_length_is_bounded() -> None:
    assert small_config(positions="none").has_longest
    assert small_config(attention="softmax", positions="learned").has_longest
    assert not small_config(attention="softmax", positions="rotary").has_longest


def test_saved_and_loaded_it_is_the_same(tmp_path: Any) -> None:
    config = small_config(attention=["cosformer", "softmax"], feature_map="silu", num_labels=5)
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, CosformerConfig)
    assert again.to_dict() | {"_name_or_path": ""} == config.to_dict()
    assert again.num_labels == 5


WRONG = {
    "unknown attention": ({"attention": "softmin"}, "attention='softmin' is unknown: did you mean softmax"),
    "too few attentions": ({"attention": ["softmax"]}, "attention names 1 blocks but num_hidden_layers=2"),
    "unknown in a list": ({"attention": ["softmax", "x"]}, "attention='x' is unknown"),
    "positions": ({"positions": "alibi"}, "positions='alibi' is unknown: use one of none, learned, sinusoidal, rotary"),
    "norm": ({"norm": "batchnorm"}, "use one of rmsnorm, layernorm"),
    "mlp": ({"mlp": "mish"}, "use one of gelu, gelu_tanh, relu, silu, swiglu"),
    "feature map": ({"feature_map": "exp"}, "feature_map='exp' is unknown"),
    "normalizer": ({"normalizer": "max"}, "use one of sum, norm"),
    "pooling": ({"pooling": "max"}, "use one of mean, first, last"),
    "horizon": ({"horizon": 0}, "horizon=0: it counts tokens"),
    "heads": ({"hidden_size": 33}, "hidden_size=33 with num_attention_heads=4"),
    "key heads": ({"num_key_value_heads": 3}, "the first must be a multiple of the second"),
    "odd rotary": ({"head_dim": 5, "positions": "rotary"}, "choose an even width"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers=0: it must be positive"),
    "dropout": ({"hidden_dropout": 1.0}, "hidden_dropout=1.0: it is a probability"),
    "smoothing": ({"label_smoothing": -0.1}, "label_smoothing=-0.1"),
    "misspelt": ({"horison": 12}, "no field 'horison': did you mean 'horizon'"),
    "types": ({"type_vocab_size": -1}, "use 0 for no token types"),
    "rows": ({"positions": "learned", "learned_positions": 9}, "at least one for each token; use 0 for just these"),
    "no-rows": ({"positions": "rotary", "learned_positions": 9_999}, "it counts learned positions"),
    "head": ({"classifier_hidden_size": -1}, "classifier_hidden_size=-1: a width; 0 for no such layer"),
    "deviation": ({"initializer_range": -0.1}, "initializer_range=-0.1: weights are drawn with this deviation"),
    "eps": ({"norm_eps": 0.0}, "norm_eps=0.0: it must be positive"),
}


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=WRONG)
def test_wrong_fields_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + words.replace("(", r"\(")):
        small_config(**options)


def test_a_field_of_another_type_is_refused() -> None:
    with pytest.raises(StrictDataclassFieldValidationError, match="horizon"):
        small_config(horizon="4096")


def test_a_field_spoilt_later_is_refused_when_a_model_is_made() -> None:
    config = small_config()
    config.positions = "alibi"
    with pytest.raises(ValueError, match="positions='alibi'"):
        CosformerModel(config)


@pytest.mark.parametrize(
    ("cls", "options", "words"),
    [
        (CosformerForCausalLM, {"causal": False}, "CosformerForMaskedLM"),
        (CosformerForMaskedLM, {}, r"CosformerConfig\(causal=False\)"),
        (CosformerForConditionalGeneration, {}, "is_encoder_decoder=True"),
        (CosformerModel, {"is_encoder_decoder": True}, "CosformerForConditionalGeneration"),
    ],
)
def test_a_head_refuses_a_config_it_cannot_use(cls: type, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cls(small_config(**options))


class Averaging(AttentionKind):
    """Every token gets the mean of all values."""

    causal_too = across_too = False

    def attend(self, q, k, v, layout, cache):
        return v.mean(2, keepdim=True).expand(-1, -1, q.shape[2], -1).repeat_interleave(q.shape[1] // v.shape[1], 1)


def test_a_new_kind_works_in_the_same_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "averaging", Averaging)
    model = CosformerModel(small_config(attention=["averaging", "cosformer"], causal=False)).eval()
    assert model(tokens(2, 9)).last_hidden_state.shape == (2, 9, 32)
    with pytest.raises(ValueError, match="cannot be causal"):
        small_config(attention="averaging")
    with pytest.raises(ValueError, match="cannot be causal"):
        small_config(attention="averaging", is_encoder_decoder=True)
    with pytest.raises(ValueError, match="already"):
        register_attention("softmax", Averaging)


@pytest.mark.parametrize(
    ("stand_in", "words"),
    [("None", "pip install 'cosformer[models]'"), ("types.SimpleNamespace(__version__='5.16.1')", "5.17 or newer")],
    ids=["missing", "too-old"],
)
def test_without_a_fitting_transformers_it_says_so(stand_in: str, words: str) -> None:
    program = f"import sys, types; sys.modules['transformers'] = {stand_in}; import cosformer.models"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]
