"""`cosformer generate`: the text the model itself would write; clear refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import HORIZON, small_model
from typer.testing import CliRunner

from cosformer.cli.main import app
from cosformer.models import (
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    byte_tokenizer,
)

PROMPT = "héllo"
NEW = 25


def run(*arguments: object, text: str | None = None):
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], input=text)


def plain(output: str) -> str:
    return " ".join(output.replace("│", " ").split())


def save(folder: Path, cls: type = CosformerForCausalLM, **options: Any) -> Any:
    model = small_model(cls, **{"vocab_size": 259, "pad_token_id": 0, "eos_token_id": 2} | options)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return model


def wanted(model: Any, **options: Any) -> str:
    end = [2] if model.config.is_encoder_decoder else []  # as sources end in training
    ids = torch.tensor([byte_tokenizer()(PROMPT).input_ids + end])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, **options)
    start = 1 if model.config.is_encoder_decoder else ids.shape[1]
    return byte_tokenizer().decode(out[0, start:], skip_special_tokens=True)


@pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
@pytest.mark.parametrize("attention", ["cosformer", "softmax"])
def test_it_goes_on_as_the_model_does(attention: str, stream: list[str], tmp_path: Path) -> None:
    model = save(tmp_path, attention=attention)
    done = run(tmp_path, "--prompt", PROMPT, "--max-new-tokens", NEW, *stream)
    assert done.exit_code == 0, done.output
    assert done.stdout == wanted(model) + "\n"
    assert len(wanted(model)) > 5
    piped = run(tmp_path, "--prompt", "-", "--max-new-tokens", NEW, *stream, text=PROMPT)
    assert piped.stdout == done.stdout


def test_unless_told_it_writes_what_the_horizon_leaves(tmp_path: Path) -> None:
    save(tmp_path, eos_token_id=None, attention="cosformer")
    done = run(tmp_path, "--prompt", "a" * (HORIZON - 3))
    assert done.exit_code == 0, done.output
    refused = run(tmp_path, "--prompt", "a" * (HORIZON + 1))
    assert refused.exit_code == 2
    assert f"the model's horizon is {HORIZON}: shorten the prompt" in plain(refused.output)


def test_an_encoder_decoder_answers(tmp_path: Path) -> None:
    model = save(tmp_path, CosformerForConditionalGeneration, is_encoder_decoder=True, decoder_start_token_id=1)
    for stream in ([], ["--stream"]):
        done = run(tmp_path, "--prompt", PROMPT, "--max-new-tokens", NEW, *stream)
        assert done.stdout == wanted(model) + "\n"


def test_a_seed_repeats_itself(tmp_path: Path) -> None:
    model = save(tmp_path)
    options = ["--prompt", PROMPT, "--max-new-tokens", NEW, "--temperature", 1.5]
    one, same, other = (run(tmp_path, *options, "--seed", seed).stdout for seed in (4, 4, 5))
    assert one == same != other
    likeliest = run(tmp_path, *options, "--top-k", 1, "--top-p", 0.9)
    assert likeliest.stdout == wanted(model) + "\n"


def test_half_precision(tmp_path: Path) -> None:
    save(tmp_path)
    done = run(tmp_path, "--prompt", PROMPT, "--max-new-tokens", 4, "--dtype", "bf16")
    assert done.exit_code == 0, done.output


def test_an_empty_prompt_begins_at_the_beginning(tmp_path: Path) -> None:
    model = save(tmp_path)
    end = torch.tensor([[2]])  # of the document before: in training no text begins with <bos>
    out = model.generate(end, attention_mask=torch.ones(1, 1), max_new_tokens=9, do_sample=False)
    done = run(tmp_path, "--prompt", "", "--max-new-tokens", 9)
    assert done.stdout == byte_tokenizer().decode(out[0, 1:], skip_special_tokens=True) + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["empty"], "has no config.json"),
        (["other"], "model_type='gpt2' and is no cosFormer model"),
        (["bare"], "has no tokenizer that loads"),
        (["strange"], "the tokenizer in strange has 259 tokens and the model knows 61"),
        (["encoder"], "a CosformerForMaskedLM writes no text"),
        (["cut"], "is cut short"),
        (["lacking"], "lacks model.norm.weight"),
        (["model", "--max-new-tokens", str(HORIZON)], f"the model's horizon is {HORIZON}"),
        (["model", "--top-k", "5"], "nothing to draw"),
        (["model", "--temperature", "-1"], "temperature=-1"),
        (["model", "--device", "tpu"], "not on this machine"),
        (["model", "--dtype", "int4"], "use one of fp32"),
        (["model", "--graph", "--max-new-tokens", "5"], "CUDA graphs need a CUDA device"),
    ],
    ids=str,
)
def test_refusals(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file, save_file

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    name = arguments[0]
    if name in ("model", "cut", "lacking"):
        save(Path(name))
    file = Path(name, "model.safetensors")
    if name == "cut":
        file.write_bytes(file.read_bytes()[:-500])
    elif name == "lacking":
        tensors = load_file(file)
        del tensors["model.norm.weight"]
        save_file(tensors, file, {"format": "pt"})
    elif name == "encoder":
        save(Path(name), CosformerForMaskedLM, causal=False)
    elif name == "strange":
        save(Path(name), vocab_size=61)
    elif name == "bare":
        small_model(CosformerForCausalLM).save_pretrained(name)
    elif name == "other":
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    elif name == "empty":
        Path(name).mkdir()
    done = run(*arguments, "--prompt", PROMPT)
    assert done.exit_code == 2, done.output
    assert message in plain(done.output)
    assert "Traceback" not in done.output
