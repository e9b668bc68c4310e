"""`cosformer inspect`: its numbers are those of the model itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import ATTENTIONS, HORIZON, small_model, tokens
from torch.testing import assert_close
from transformers import DynamicCache
from typer.testing import CliRunner

from cosformer.cli.main import app
from cosformer.models import (
    AttentionKind,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerModel,
    byte_tokenizer,
)
from cosformer.models.inspection import attention_maps, describe


def run(*arguments: object):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def save(folder: Path, cls: type = CosformerForCausalLM, **options: Any) -> Any:
    model = small_model(cls, **{"vocab_size": 259, "pad_token_id": 0} | options)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return model


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_numbers_are_those_of_the_model(attention: str, tied: bool, tmp_path: Path) -> None:
    model = save(tmp_path, attention=ATTENTIONS[attention], tie_word_embeddings=tied, normalizer="norm")
    facts = json.loads(run(tmp_path, "--json").stdout)
    assert facts["parameters"]["total"] == sum(p.numel() for p in model.parameters())
    assert facts["parameters"]["heads"] == (0 if tied else 259 * 32)
    assert [layer["attention"] for layer in facts["layers"]] == model.config.attentions
    assert facts["horizon"] == HORIZON
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(tokens(1, 9), past_key_values=cache)
    held: Any = cache.layers
    states = sum(layer.nbytes - 8 for layer in held if hasattr(layer, "sums"))  # less its count of tokens
    keys = sum(layer.keys.nbytes + layer.values.nbytes for layer in held if not hasattr(layer, "sums"))
    assert facts["state_bytes"] == states
    assert facts["cache_bytes_per_token"] * 9 == keys
    linear = 2 * (32 * 32 * 2 + 2 * 32 * 16 + 2 * 32 * 48) + 259 * 32
    assert facts["flops_per_token"]["weights"] == 2 * linear


def test_half_precision_halves_the_cache_and_not_the_state(tmp_path: Path) -> None:
    model = save(tmp_path / "whole", attention=["cosformer", "softmax"])
    model.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    whole, half = (json.loads(run(tmp_path / name, "--json").stdout) for name in ("whole", "half"))
    assert half["dtype"] == "bfloat16"
    assert half["state_bytes"] == whole["state_bytes"]
    assert 2 * half["cache_bytes_per_token"] == whole["cache_bytes_per_token"]


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (CosformerModel, {"causal": False}),
        (CosformerForMaskedLM, {"causal": False, "norm_first": False, "embedding_norm": True}),
        (CosformerForSequenceClassification, {"num_labels": 3, "positions": "learned", "type_vocab_size": 2}),
        (CosformerForConditionalGeneration, {"is_encoder_decoder": True, "decoder_start_token_id": 1}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_every_class(cls: type, options: dict[str, Any], tmp_path: Path) -> None:
    model = save(tmp_path, cls, **options)
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    assert cls.__name__ in done.stdout
    assert f"{sum(p.numel() for p in model.parameters()):,}" in done.stdout
    facts = json.loads(run(tmp_path, "--json").stdout)
    assert len(facts["layers"]) == (4 if model.config.is_encoder_decoder else 2)
    if not model.config.causal:
        assert facts["state_bytes"] == 0


def test_tables_for_people(tmp_path: Path) -> None:
    save(tmp_path, attention=["cosformer", "softmax"])
    text = " ".join(run(tmp_path).stdout.replace("│", " ").split())
    assert f"horizon {HORIZON} tokens" in text
    assert "bytes per sequence, whatever its length" in text
    assert "bytes per token of context" in text
    assert "decoder 1 softmax yes" in text


def test_an_attention_of_your_own_is_counted_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from cosformer.models import KINDS

    monkeypatch.setitem(KINDS, "mine", AttentionKind)
    facts = describe(small_model(CosformerModel, attention="mine").config)
    assert facts["flops_per_token"]["attention"] is None
    with pytest.raises(ValueError, match="AttentionKind has no weights to draw"):
        attention_maps(small_model(CosformerModel, attention="mine"), tokens(1, 5))


# Maps


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_maps_are_the_weights_the_model_uses(attention: str, causal: bool) -> None:
    """weights @ v is what the block's attention gives."""
    model = small_model(CosformerModel, attention=ATTENTIONS[attention], causal=causal, positions="rotary")
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    for block in model.layers:
        plain = block.self_attn.kind.attend

        def watched(q, k, v, layout, cache, plain=plain):
            o = plain(q, k, v, layout, cache)
            seen.append((v, o))
            return o

        block.self_attn.kind.attend = watched
    want = model(tokens(1, 13), use_cache=False).last_hidden_state
    for block in model.layers:
        del block.self_attn.kind.attend
    maps = attention_maps(model, tokens(1, 13))
    assert len(maps) == len(seen) == 2
    for weights, (v, o) in zip(maps, seen, strict=True):
        assert weights.shape == (4, 13, 13)
        assert_close(weights @ v[0].repeat_interleave(2, 0), o[0], rtol=1e-4, atol=1e-5)
        assert (weights >= 0).all()
        if causal:
            assert not weights.triu(1).any()
    assert torch.equal(model(tokens(1, 13), use_cache=False).last_hidden_state, want)  # nothing is left behind


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save(tmp_path / "model", attention=["cosformer", "softmax"])
    for text in ("short $x$ é", "a longer text, with more tokens than labels fit"):
        out = tmp_path / "pictures" / "map.png"
        done = run(tmp_path / "model", "--attention-map", text, "--out", out)
        assert done.exit_code == 0, done.output
        assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["model", "--attention-map", "text"], "belong together"),
        (["model", "--out", "map.png"], "belong together"),
        (["model", "--attention-map", "", "--out", "map.png"], "is empty"),
        (["model", "--attention-map", "a" * (HORIZON + 1), "--out", "map.png"], f"the model's horizon is {HORIZON}"),
        (["two", "--attention-map", "text", "--out", "map.png"], "an encoder–decoder has two"),
        (["bare", "--attention-map", "text", "--out", "map.png"], "has no tokenizer that loads"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_refusals(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    if arguments[0] == "model":
        save(Path("model"))
    elif arguments[0] == "two":
        save(Path("two"), CosformerForConditionalGeneration, is_encoder_decoder=True, decoder_start_token_id=1)
    elif arguments[0] == "bare":
        small_model(CosformerForCausalLM).save_pretrained("bare")
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.replace("│", " ").split())
    assert not Path("map.png").exists()
