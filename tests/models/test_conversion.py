"""From softmax checkpoints: every copied tensor equal, the logits too where softmax is kept, all else accounted for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    T5Config,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from cosformer.models import CosformerForMaskedLM, CosformerModel, byte_tokenizer
from cosformer.models.conversion import REPORT, convert, converted

VOCAB, PAD, LONGEST = 70, 1, 40
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 56,
    "initializer_range": 0.3, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
BERTS = SIZES | {"max_position_embeddings": LONGEST}
ROBERTAS = SIZES | {"max_position_embeddings": LONGEST + PAD + 1, "type_vocab_size": 1}
GPTS = SIZES | {"n_positions": LONGEST, "n_inner": 56}
LLAMAS = SIZES | {"max_position_embeddings": LONGEST, "num_key_value_heads": 2}
LABELS = {"num_labels": 5}

SOURCES: dict[str, tuple[type, Any]] = {
    "bert": (BertForMaskedLM, BertConfig(**BERTS)),
    "bert-untied": (BertForMaskedLM, BertConfig(**BERTS, tie_word_embeddings=False, layer_norm_eps=1e-3)),
    "bert-pretraining": (BertForPreTraining, BertConfig(**BERTS)),
    "bert-tokens-relu": (BertForTokenClassification, BertConfig(**BERTS, **LABELS, hidden_act="relu")),
    "bert-rows": (BertForSequenceClassification, BertConfig(**BERTS, **LABELS)),
    "bert-body": (BertModel, BertConfig(**BERTS, hidden_act="gelu_new")),
    "bert-questions": (BertForQuestionAnswering, BertConfig(**BERTS)),
    "roberta": (RobertaForMaskedLM, RobertaConfig(**ROBERTAS, layer_norm_eps=1e-5)),
    "roberta-silu": (RobertaForMaskedLM, RobertaConfig(**ROBERTAS, hidden_act="silu")),
    "roberta-rows": (RobertaForSequenceClassification, RobertaConfig(**ROBERTAS, **LABELS)),
    "xlm-roberta": (XLMRobertaForMaskedLM, XLMRobertaConfig(**ROBERTAS | {"type_vocab_size": 2})),
    "gpt2": (GPT2LMHeadModel, GPT2Config(**GPTS)),
    "gpt2-untied-relu": (GPT2LMHeadModel, GPT2Config(**GPTS, tie_word_embeddings=False, activation_function="relu")),
    "gpt2-rows": (GPT2ForSequenceClassification, GPT2Config(**GPTS, **LABELS)),
    "gpt2-tokens": (GPT2ForTokenClassification, GPT2Config(**GPTS, **LABELS)),
    "gpt2-body": (GPT2Model, GPT2Config(**GPTS)),
    "llama": (LlamaForCausalLM, LlamaConfig(**LLAMAS, rope_parameters={"rope_type": "default", "rope_theta": 500.0})),
    "llama-biases-tied-wide-heads": (
        LlamaForCausalLM,
        LlamaConfig(**LLAMAS, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=12),
    ),
    "llama-rows": (LlamaForSequenceClassification, LlamaConfig(**LLAMAS, **LABELS, rms_norm_eps=1e-3)),
    "llama-tokens": (LlamaForTokenClassification, LlamaConfig(**LLAMAS, **LABELS)),
    "mistral": (MistralForCausalLM, MistralConfig(**LLAMAS, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**LLAMAS)),
}
IN_PART = {"bert-rows", "roberta-rows", "bert-questions"}  # their heads have no counterpart


def make(name: str, folder: Path, **options: Any) -> Any:
    """The source, with every bias and norm drawn too, saved."""
    cls, config = SOURCES[name]
    torch.manual_seed(3)
    model: PreTrainedModel = cls(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.3)
    model.save_pretrained(folder, **options)
    return model


def inputs(name: str) -> dict[str, Tensor]:
    """Two rows, one padded on the right; ordinary tokens elsewhere."""
    ids = torch.randint(3, VOCAB, (2, 17), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    ids[1, 11:], mask[1, 11:] = PAD, 0
    given = {"input_ids": ids, "attention_mask": mask}
    if name.startswith("bert") or name == "xlm-roberta":
        given["token_type_ids"] = (torch.arange(17) > 6).long().expand(2, 17)
    return given


def answer(model: Any, name: str) -> Tensor:
    with torch.no_grad():
        out = model(**inputs(name))
    return out.get("logits", out.get("prediction_logits", out.get("last_hidden_state")))


def real(x: Tensor, name: str) -> Tensor:
    return x[inputs(name)["attention_mask"].bool()] if x.dim() == 3 else x


@pytest.mark.parametrize("name", SOURCES)
def test_with_softmax_kept_it_answers_as_the_source(name: str, tmp_path: Path) -> None:
    source = make(name, tmp_path / "source")
    report = convert(tmp_path / "source", tmp_path / "target", attention="softmax")
    from cosformer import models

    got = getattr(models, report.target_class).from_pretrained(tmp_path / "target").eval()
    if name in ("bert-rows", "roberta-rows"):
        source, got = source.base_model, got.model
    elif name == "bert-questions":
        source = source.base_model
    assert_close(real(answer(got, name), name), real(answer(source, name), name), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("attention", ["cosformer", "softmax"])
def test_every_tensor_is_copied_or_accounted_for(name: str, attention: str, tmp_path: Path) -> None:
    source = make(name, tmp_path)
    ours, report = converted(tmp_path, attention=attention)
    theirs, mine = source.state_dict(), ours.state_dict()
    assert {e["source"] for e in report.copied} | {e["source"] for e in report.not_copied} == set(theirs)
    assert {e["target"] for e in report.copied} | {e["target"] for e in report.new} == set(mine)
    assert not {e["target"] for e in report.copied} & {e["target"] for e in report.new}
    assert not {e["source"] for e in report.copied} & {e["source"] for e in report.not_copied}
    assert len(report.copied) >= 29
    for entry in report.copied:
        want, got = theirs[entry["source"]], mine[entry["target"]]
        if "columns" in entry["note"]:
            first, last = map(int, entry["note"].split(",")[0].removeprefix("columns ").split(":"))
            want = want[..., first:last]
        if "rows" in entry["note"]:
            want = want[PAD + 1 :]
        if "turned" in entry["note"]:
            want = want.T
        assert torch.equal(got, want), entry
    left = {e["source"] for e in report.not_copied}
    assert bool(left) == (name in IN_PART | {"bert-pretraining", "bert-body", "bert-untied"}), left
    assert all(e["reason"] for e in report.not_copied + report.new)
    # what is new is nothing but a head, or a bias of zero
    for entry in report.new:
        assert entry["target"].startswith("score.") or entry["target"].endswith("o_proj.bias"), entry
        assert entry["how"] == "zeros" or entry["target"] == "score.weight", entry


def test_a_wrong_tensor_would_show(tmp_path: Path) -> None:
    """The comparison of logits sees two norms exchanged, a bias dropped, a position moved by one."""
    source = make("roberta", tmp_path)
    ours, _ = converted(tmp_path, attention="softmax")
    want = real(answer(source, "roberta"), "roberta")
    state = {name: p.clone() for name, p in ours.state_dict().items()}
    assert_close(real(answer(ours, "roberta"), "roberta"), want, rtol=1e-4, atol=1e-4)
    for broken in (
        {"model.layers.1.attn_norm.weight": state["model.layers.1.mlp_norm.weight"]},
        {"model.layers.2.self_attn.k_proj.weight": state["model.layers.2.self_attn.q_proj.weight"]},
        {"lm_head.decoder.bias": torch.zeros(VOCAB)},
        {"model.embed_positions.weight": state["model.embed_positions.weight"].roll(1, 0)},
    ):
        ours.load_state_dict(state | broken)
        with pytest.raises(AssertionError):
            assert_close(real(answer(ours, "roberta"), "roberta"), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
def test_generation_goes_on_as_the_source_would(name: str, tmp_path: Path) -> None:
    source = make(name, tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "target", attention="softmax")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "target").eval()
    ids = inputs(name)["input_ids"][:1]
    options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    assert torch.equal(ours.generate(ids, **options), source.generate(ids, **options))


@pytest.mark.parametrize("name", ["roberta", "gpt2", "llama"])
def test_converted_it_trains(name: str, tmp_path: Path) -> None:
    """Ready for fine-tuning: loaded with cosFormer attention, a few steps lower the loss."""
    make(name, tmp_path / "source")
    report = convert(tmp_path / "source", tmp_path / "target")
    assert report.attention == ["cosformer"] * 3
    auto: Any = AutoModelForMaskedLM if name == "roberta" else AutoModelForCausalLM
    model, info = auto.from_pretrained(tmp_path / "target", output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    ids = inputs(name)["input_ids"][:1]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(8):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_a_list_by_layer(tmp_path: Path) -> None:
    make("gpt2", tmp_path)
    ours, report = converted(tmp_path, attention=["softmax", "cosformer", "softmax"], normalizer="norm")
    assert report.attention == ours.config.attention == ["softmax", "cosformer", "softmax"]
    assert [e["target"] for e in report.new] == ["model.layers.1.self_attn.kind.norm.weight"]
    assert report.new[0]["how"] == "ones"
    with pytest.raises(ValueError, match="attention names 2 blocks but num_hidden_layers=3"):
        converted(tmp_path, attention=["softmax", "cosformer"])


@pytest.mark.parametrize("name", ["roberta", "gpt2"])
@pytest.mark.parametrize("horizon", [25, 100], ids=["shorter", "longer"])
def test_another_horizon_cuts_or_repeats_learned_positions(name: str, horizon: int, tmp_path: Path) -> None:
    source = make(name, tmp_path)
    ours, report = converted(tmp_path, horizon=horizon)
    table = source.base_model.embeddings.position_embeddings if name == "roberta" else source.base_model.wpe
    rows = table.weight[PAD + 1 :] if name == "roberta" else table.weight
    got = ours.model.embed_positions.weight
    assert got.shape[0] == ours.config.horizon == report.horizon == horizon
    for start in range(0, horizon, LONGEST):
        piece = got[start : start + LONGEST]
        assert torch.equal(piece, rows[: len(piece)])
    (entry,) = [e for e in report.copied if e["target"] == "model.embed_positions.weight"]
    assert ("repeated up to 100" in entry["note"]) == (horizon == 100)
    assert ours(torch.full((1, horizon), 5)).logits.shape == (1, horizon, VOCAB)


def test_a_horizon_beside_rotary_positions(tmp_path: Path) -> None:
    make("llama", tmp_path)
    ours, report = converted(tmp_path, horizon=1000)
    assert ours.config.horizon == 1000
    assert not report.new
    assert ours.config.rotary_base == 500.0


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_half_precision_and_shards(name: str, tmp_path: Path) -> None:
    source = make(name, tmp_path / "whole").to(torch.bfloat16)
    source.save_pretrained(tmp_path / "source", max_shard_size="20KB")
    assert len(list((tmp_path / "source").glob("model-*.safetensors"))) > 1
    ours, report = converted(tmp_path / "source", attention="softmax")
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    for entry in report.copied:
        if not entry["note"]:
            assert torch.equal(ours.state_dict()[entry["target"]], source.state_dict()[entry["source"]])


def test_labels_and_tokens_come_along(tmp_path: Path) -> None:
    config = RobertaConfig(
        **ROBERTAS, id2label={0: "no", 1: "yes", 2: "maybe"}, label2id={"no": 0, "yes": 1, "maybe": 2}
    )
    RobertaForSequenceClassification(config).save_pretrained(tmp_path)
    ours, _ = converted(tmp_path)
    assert ours.config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert (ours.config.pad_token_id, ours.config.bos_token_id, ours.config.eos_token_id) == (PAD, 0, 2)
    assert ours.score.out_features == 3


def test_a_layer_before_the_score_makes_both_new(tmp_path: Path) -> None:
    """Also where the score's shape would fit: it would read something else."""
    source = make("llama-rows", tmp_path)
    width = source.config.hidden_size
    ours, report = converted(tmp_path, classifier_hidden_size=width)
    assert ours.score.weight.shape == source.score.weight.shape
    assert not torch.equal(ours.score.weight, source.score.weight)
    reasons = {entry["target"]: entry["reason"] for entry in report.new}
    assert reasons["score.weight"] == reasons["hidden.weight"] == "a head to be trained"
    assert "score.weight" in [entry["source"] for entry in report.not_copied]


def test_the_same_seed_draws_the_same(tmp_path: Path) -> None:
    make("bert-rows", tmp_path)
    before = torch.random.get_rng_state()
    one, two, other = (converted(tmp_path, seed=seed)[0].score.weight for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    make("gpt2", tmp_path / "source")
    byte_tokenizer().save_pretrained(tmp_path / "source")
    report = convert(tmp_path / "source", tmp_path / "target")
    assert report.tokenizer.endswith("259 tokens")
    text = "né <eos>"
    assert AutoTokenizer.from_pretrained(tmp_path / "target")(text).input_ids == byte_tokenizer()(text).input_ids


def test_a_tokenizer_known_by_its_model_alone_is_found_again(tmp_path: Path) -> None:
    """Older checkpoints name no class of tokenizer: transformers finds it by model_type, which ours would not."""
    make("bert", tmp_path / "source")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg", "##a", "##b"]
    (tmp_path / "source" / "vocab.txt").write_text("\n".join(words))
    want = AutoTokenizer.from_pretrained(tmp_path / "source")("ab ba g")
    convert(tmp_path / "source", tmp_path / "target")
    got = AutoTokenizer.from_pretrained(tmp_path / "target")("ab ba g")
    assert got.input_ids == want.input_ids
    assert len(set(got.input_ids)) > 3


def test_a_tokenizer_that_does_not_load_is_copied_as_it_is(tmp_path: Path) -> None:
    make("gpt2", tmp_path / "source")
    (tmp_path / "source" / "tokenizer.json").write_text("{}")
    report = convert(tmp_path / "source", tmp_path / "target")
    assert "did not load here" in report.tokenizer
    assert (tmp_path / "target" / "tokenizer.json").read_text() == "{}"
    make("gpt2", tmp_path / "bare")
    assert convert(tmp_path / "bare", tmp_path / "target2").tokenizer == "none: the source has no tokenizer"


def test_the_report_is_in_the_folder(tmp_path: Path) -> None:
    make("bert-pretraining", tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "target", attention="softmax")
    report = json.loads((tmp_path / "target" / REPORT).read_text())
    assert (report["source"], report["source_type"], report["source_class"]) == ("source", "bert", "BertForPreTraining")
    assert report["target_class"] == "CosformerForMaskedLM"
    assert {e["source"] for e in report["not_copied"]} == {
        "bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias"
    }  # fmt: skip
    assert str(tmp_path) not in json.dumps(report)


# What cannot be converted


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"is_decoder": True}, "is_decoder=True"),
    ("bert", {"hidden_act": "relu"}, "hidden_act='relu' in the head too"),
    ("roberta", {"hidden_act": "mish"}, "activation 'mish'"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=False"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_type='linear'"),
    ("mistral", {"sliding_window": 8}, "sliding_window=8"),
    ("gpt2", {"model_type": "gptj"}, "model_type='gptj': what can be converted is bert"),
    ("gpt2", {"model_type": "cosformer"}, "is a cosFormer model already"),
    ("gpt2", {"n_layer": 4}, r"lacks transformer\.h\.3"),
]


@pytest.mark.parametrize(("name", "fields", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else str(x))
def test_refused_with_the_reason(name: str, fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    make(name, tmp_path / "source")
    change(tmp_path / "source", **fields)
    with pytest.raises((ValueError, RuntimeError), match=message):
        convert(tmp_path / "source", tmp_path / "target", attention="softmax")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_a_window_does_not_matter_where_softmax_goes(tmp_path: Path) -> None:
    make("mistral", tmp_path)
    change(tmp_path, sliding_window=8)
    _, report = converted(tmp_path)
    assert "the source sees 8 tokens back" in report.notes[0]


@pytest.mark.parametrize("first", [1, 3])
def test_a_window_that_no_layer_has_is_no_window(first: int, tmp_path: Path) -> None:
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": first}
    source = Qwen2ForCausalLM(Qwen2Config(**LLAMAS, **windows)).eval()
    source.save_pretrained(tmp_path)
    if first < source.config.num_hidden_layers:
        with pytest.raises(ValueError, match="sliding_window=8"):
            converted(tmp_path, attention="softmax")
        return
    ours, report = converted(tmp_path, attention="softmax")
    ids = torch.arange(3, 33)[None]
    assert_close(ours(ids).logits, source(ids).logits, rtol=1e-4, atol=1e-4)
    assert not any("tokens back" in note for note in report.notes)


def test_a_source_that_is_none(tmp_path: Path) -> None:
    empty, target = tmp_path / "empty", tmp_path / "target"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        convert(tmp_path / "nowhere", target)
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        convert(empty, target)
    (empty / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not a readable config"):
        convert(empty, target)
    T5Config().save_pretrained(empty)
    with pytest.raises(ValueError, match="model_type='t5'"):
        convert(empty, target)
    GPT2Config().save_pretrained(empty)
    with pytest.raises(FileNotFoundError, match="has no weights"):
        convert(empty, target)
    assert not target.exists()


@pytest.mark.parametrize("name", ["roberta", "gpt2", "llama"])
def test_a_truncated_file_names_the_tensor_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "source")
    file = tmp_path / "source" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RuntimeError, match=r"model\.safetensors is cut short and lacks all or part of .*weight"):
        convert(tmp_path / "source", tmp_path / "target")
    file.write_bytes(whole[:100])
    with pytest.raises(RuntimeError, match=r"model\.safetensors has no readable header"):
        convert(tmp_path / "source", tmp_path / "target")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    make("gpt2", tmp_path / "source")
    file = tmp_path / "source" / "model.safetensors"
    save_file(load_file(file) | {"transformer.ln_f.weight": torch.zeros(5)}, file, {"format": "pt"})
    with pytest.raises(RuntimeError, match=r"ln_f\.weight"):
        convert(tmp_path / "source", tmp_path / "target")


def test_a_target_that_is_there_stays(tmp_path: Path) -> None:
    make("gpt2", tmp_path / "source")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "kept").write_text("kept")
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        convert(tmp_path / "source", tmp_path / "target")
    with pytest.raises(FileExistsError):
        convert(tmp_path / "source", tmp_path / "source")
    assert [p.name for p in (tmp_path / "target").iterdir()] == ["kept"]


def test_a_bert_that_writes_is_refused(tmp_path: Path) -> None:
    BertLMHeadModel(BertConfig(**BERTS, is_decoder=True)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is_decoder=True"):
        converted(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": "rmsnorm"}, r"attn_norm\.bias, which the new model does not have: the fields given \(norm\)"),
        ({"positions": "none"}, r"embed_positions\.weight, which the new model does not have"),
        ({"num_hidden_layers": 1}, r"layers\.1\.self_attn\.q_proj\.weight, which the new model does not have"),
        ({"vocab_size": 90}, r"\[90, 32\]: the fields given \(vocab_size\) make a model of other tensors"),
    ],
    ids=str,
)
def test_fields_that_change_tensors_are_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    make("gpt2", tmp_path)
    with pytest.raises(ValueError, match=message):
        converted(tmp_path, **fields)


def test_a_head_of_its_own_is_not_copied_over_the_embeddings(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(**GPTS, tie_word_embeddings=False)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lm_head\.weight is the same matrix: leave out tie_word_embeddings=True"):
        converted(tmp_path, tie_word_embeddings=True)
    ours, _ = converted(tmp_path)
    assert not torch.equal(ours.lm_head.weight, ours.model.embed_tokens.weight)


def test_a_next_token_head_that_sees_both_ways_is_refused(tmp_path: Path) -> None:
    RobertaForCausalLM(RobertaConfig(**ROBERTAS)).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"this checkpoint has architectures=\['RobertaForCausalLM'\] with is_decoder=False"
    ):
        converted(tmp_path)


def test_no_architecture_is_a_body(tmp_path: Path) -> None:
    source = make("bert", tmp_path)
    change(tmp_path, architectures=None)
    ours, report = converted(tmp_path, attention="softmax")
    assert type(ours) is CosformerModel
    assert {e["source"].split(".")[0] for e in report.not_copied} == {"cls"}  # and no pooler, which no file has
    assert_close(real(answer(ours, "bert"), "bert"), real(answer(source.bert, "bert"), "bert"), rtol=1e-4, atol=1e-4)
    assert type(CosformerForMaskedLM(ours.config)) is CosformerForMaskedLM
