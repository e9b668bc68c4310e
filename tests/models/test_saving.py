"""save_pretrained and from_pretrained: whole, sharded, tied, in half precision, by the Auto classes; broken files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import VOCAB, small_config, small_model, tokens
from torch.testing import assert_close
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from cosformer.models import (
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForPairClassification,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
    CosformerModel,
)

HEADS: dict[type, tuple[Any, dict[str, Any]]] = {
    CosformerModel: (AutoModel, {"normalizer": "norm"}),
    CosformerForCausalLM: (AutoModelForCausalLM, {"positions": "learned"}),
    CosformerForMaskedLM: (AutoModelForMaskedLM, {"causal": False, "norm_first": False, "embedding_norm": True}),
    CosformerForSequenceClassification: (AutoModelForSequenceClassification, {"num_labels": 3}),
    CosformerForTokenClassification: (AutoModelForTokenClassification, {"num_labels": 3, "causal": False}),
    CosformerForConditionalGeneration: (AutoModelForSeq2SeqLM, {"is_encoder_decoder": True}),
    CosformerForPairClassification: (CosformerForPairClassification, {"causal": False}),
}


def answer(model: Any) -> torch.Tensor:
    inputs: dict[str, Any] = {"input_ids": tokens(2, 11)}
    if isinstance(model, CosformerForConditionalGeneration):
        inputs["decoder_input_ids"] = tokens(2, 5)
    if isinstance(model, CosformerForPairClassification):
        inputs["other_input_ids"] = tokens(2, 7)
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
@pytest.mark.parametrize("cls", HEADS, ids=lambda cls: cls.__name__)
def test_saved_and_loaded_it_answers_the_same(cls: type, tied: bool, tmp_path: Path) -> None:
    auto, options = HEADS[cls]
    model = small_model(cls, tie_word_embeddings=tied, attention=["cosformer", "softmax"], **options)
    model.save_pretrained(tmp_path)
    again, report = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is cls
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(answer(again.eval()), answer(model))
    for name, p in model.state_dict().items():
        assert torch.equal(p, again.state_dict()[name]), name


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    model = small_model(CosformerForCausalLM, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "lm_head.weight" not in names
    assert "model.embed_tokens.weight" in names
    again = CosformerForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    masked = small_model(CosformerForMaskedLM, tie_word_embeddings=True, causal=False)
    assert masked.lm_head.decoder.weight is masked.model.embed_tokens.weight


def test_sharded(tmp_path: Path) -> None:
    model = small_model(CosformerForCausalLM)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert torch.equal(answer(AutoModelForCausalLM.from_pretrained(tmp_path).eval()), answer(model))


def test_a_body_loads_from_a_head_and_a_head_from_a_body(tmp_path: Path) -> None:
    model = small_model(CosformerForMaskedLM, causal=False)
    model.save_pretrained(tmp_path / "head")
    body = AutoModel.from_pretrained(tmp_path / "head")
    assert torch.equal(answer(body.eval()), answer(model.model))
    body.save_pretrained(tmp_path / "body")
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "body", num_labels=4)
    assert torch.equal(classifier.model.embed_tokens.weight, model.model.embed_tokens.weight)
    assert classifier.score.out_features == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    model = small_model(CosformerForCausalLM, initializer_range=0.1)
    model.save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    assert {p.dtype for p in half.parameters()} == {dtype}
    got = half(tokens(2, 11))
    assert got.logits.dtype == dtype
    assert got.past_key_values.layers[0].sums.dtype == torch.float32  # sums never lose digits
    want = answer(model)
    assert (got.logits.float() - want).abs().max() < 0.1 * want.abs().max()
    assert half.generate(tokens(1, 5), max_new_tokens=4, do_sample=False).shape == (1, 9)
    half.save_pretrained(tmp_path / "half")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half").dtype == dtype


@pytest.mark.parametrize("where", ["all on the CPU", "parts on disk"])
def test_device_map(where: str, tmp_path: Path) -> None:
    model = small_model(CosformerForCausalLM, attention=["cosformer", "softmax"])
    model.save_pretrained(tmp_path / "model")
    places: Any = "cpu"
    if where == "parts on disk":
        places = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "disk"}
        places |= {"model.norm": "cpu", "lm_head": "cpu"}
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "disk"
    ).eval()
    assert_close(answer(again), answer(model))
    ids, options = tokens(2, 7), {"max_new_tokens": 5, "do_sample": False}
    assert torch.equal(again.generate(ids, **options), model.generate(ids, **options))


def test_fresh_weights_are_drawn_as_the_config_says() -> None:
    torch.manual_seed(0)
    model = CosformerForCausalLM(small_config(hidden_size=256, initializer_range=0.05, tie_word_embeddings=False))
    for name, p in model.named_parameters():
        if "norm" in name:
            assert (p == 1).all(), name
        elif name.endswith("bias"):
            assert (p == 0).all(), name
        else:
            assert abs(p.std() / 0.05 - 1) < 0.1, name


def test_embeddings_can_be_resized() -> None:
    for cls, options in ((CosformerForCausalLM, {}), (CosformerForMaskedLM, {"causal": False})):
        model = small_model(cls, tie_word_embeddings=True, **options)
        model.resize_token_embeddings(80, mean_resizing=False)
        assert model(tokens(1, 5) + 19).logits.shape == (1, 5, 80)


@pytest.mark.parametrize("tied", [True, False])
def test_both_stacks_of_an_encoder_decoder_are_resized(tied: bool, tmp_path: Path) -> None:
    options = {"is_encoder_decoder": True, "decoder_start_token_id": 1, "tie_word_embeddings": tied}
    model, ids = small_model(CosformerForConditionalGeneration, **options), tokens(1, 5)
    before = model(ids, decoder_input_ids=ids).logits
    assert model.resize_token_embeddings(80, mean_resizing=False).num_embeddings == 80
    assert_close(model(ids, decoder_input_ids=ids).logits[..., :VOCAB], before)
    logits = model(ids + 19, decoder_input_ids=ids + 19).logits
    assert logits.shape == (1, 5, 80)
    assert [part.config.vocab_size for part in (model, model.model.encoder, model.model.decoder)] == [80] * 3
    assert (model.model.decoder.embed_tokens.weight is model.model.encoder.embed_tokens.weight) == tied
    model.save_pretrained(tmp_path)
    again = CosformerForConditionalGeneration.from_pretrained(tmp_path)
    assert_close(again(ids + 19, decoder_input_ids=ids + 19).logits, logits)


# Broken files: which tensor, and nothing lost


def test_a_checkpoint_of_another_shape_names_the_tensor(tmp_path: Path) -> None:
    small_model(CosformerForCausalLM).save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    wider = small_config(intermediate_size=64)
    with pytest.raises(RuntimeError, match=r"layers.*mlp\.up_proj\.weight"):
        CosformerForCausalLM.from_pretrained(tmp_path, config=wider)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_one_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    small_model(CosformerForCausalLM).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.weight"] = torch.zeros(5, 32)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        RuntimeError,
        match=r"model\.layers\.1\.self_attn\.k_proj\.weight is \[5, 32\] in model.safetensors but \[16, 32\]",
    ):
        CosformerForCausalLM.from_pretrained(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    small_model(CosformerForCausalLM).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    _, report = CosformerForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == {"model.layers.1.mlp.down_proj.weight"}


def test_a_truncated_file_is_refused_and_names_the_tensor(tmp_path: Path) -> None:
    model = small_model(CosformerForCausalLM)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(RuntimeError, match=r"model\.safetensors.*cut short.*model\.layers\.") as error:
        CosformerForCausalLM.from_pretrained(tmp_path)
    assert "download or copy it again" in str(error.value)
    file.write_bytes(whole)  # nothing else was touched: the whole file loads
    assert torch.equal(answer(CosformerForCausalLM.from_pretrained(tmp_path).eval()), answer(model))


def test_a_file_that_ends_in_its_header_is_refused(tmp_path: Path) -> None:
    small_model(CosformerForCausalLM).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(RuntimeError, match=r"model\.safetensors has no readable header"):
        CosformerForCausalLM.from_pretrained(tmp_path)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such-model"):
        CosformerForCausalLM.from_pretrained(tmp_path / "no-such-model")


def test_a_horizon_of_the_checkpoint_wins(tmp_path: Path) -> None:
    """Changed in config.json, a horizon changes every output; learned positions then no longer fit."""
    small_model(CosformerForCausalLM, positions="learned").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["horizon"] = 12
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match=r"model\.embed_positions\.weight"):
        CosformerForCausalLM.from_pretrained(tmp_path)
