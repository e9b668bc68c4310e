"""`cosformer convert` as a person meets it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForSequenceClassification,
)
from typer.testing import CliRunner

from cosformer.cli.main import app
from cosformer.models import byte_tokenizer

SIZES: dict[str, Any] = {"vocab_size": 259, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def run(*arguments: object):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = GPT2Config(**SIZES, n_positions=32, bos_token_id=1, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    byte_tokenizer().save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def test_a_table_and_a_model(gpt2: Path) -> None:
    target = gpt2.parent / "target"
    done = run(gpt2, target, "--horizon", 64)
    assert done.exit_code == 0, done.output
    assert "GPT2LMHeadModel → CosformerForCausalLM" in done.stdout
    assert "model.layers.*.self_attn.q_proj.weight" in done.stdout
    assert "horizon 64, blocks: 2 cosformer; tokenizer:" in done.stdout
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.config.horizon == 64
    assert sorted(p.name for p in gpt2.parent.iterdir()) == ["gpt2", "target"]


def test_the_report_as_json(gpt2: Path) -> None:
    target = gpt2.parent / "target"
    done = run(gpt2, target, "--attention", "softmax,cosformer", "--json", "--normalizer", "norm")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report == json.loads((target / "conversion.json").read_text())
    assert report["attention"] == ["softmax", "cosformer"]
    assert [e["target"] for e in report["new"]] == ["model.layers.1.self_attn.kind.norm.weight"]


def test_what_is_not_copied_is_told(tmp_path: Path) -> None:
    RobertaForSequenceClassification(RobertaConfig(**SIZES)).save_pretrained(tmp_path / "source")
    done = run(tmp_path / "source", tmp_path / "target")
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.replace("│", " ").split())
    assert "not copied classifier.dense.weight" in text
    assert "a head to be trained" in text


def test_refusals_leave_nothing(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    target = gpt2.parent / "target"
    file = gpt2 / "model.safetensors"
    cases = [
        ([gpt2.parent / "nowhere", target], "nowhere is not a folder"),
        ([gpt2, gpt2], "is there already and nothing is overwritten"),
        ([gpt2, target, "--attention", "sofmax"], "attention='sofmax' is unknown"),
        ([gpt2, target, "--attention", "softmax,softmax,softmax"], "attention names 3 blocks"),
        ([gpt2, target, "--feature-map", "exp"], "feature_map='exp' is unknown"),
    ]
    for arguments, message in cases:
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.output.replace("│", " ").split())
    file.write_bytes(file.read_bytes()[:-1000])
    done = run(gpt2, target)
    assert done.exit_code == 2
    assert "cut short" in done.output
    assert [p.name for p in gpt2.parent.iterdir()] == ["gpt2"]
