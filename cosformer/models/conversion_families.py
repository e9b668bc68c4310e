"""How checkpoints of other models map onto ours: fields of the config, and where each tensor comes from.

Three families: BERT (with RoBERTa and its kin), GPT-2, Llama (with Mistral and Qwen2). What one of them has and ours
cannot express is refused with the reason, so that a model converted with softmax kept answers as its source did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip


class Part(NamedTuple):
    """Where one tensor of the cosFormer model comes from."""

    target: str
    source: str
    change: Callable[[Tensor], Tensor] | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    fields: Callable[[Any], dict[str, Any]]
    """Of the source's config: those of ours, all but attention. `horizon` is the source's longest sequence."""
    body: Callable[[Any, int], Iterator[Part]]
    """Of the source's config and our horizon; names without the prefix of the body on either side."""
    masked: Callable[[], Iterator[Part]] | None = None
    """The head that fills in masked tokens, names in full."""
    token_head: str = "classifier"
    """The layer that classifies tokens."""
    row_head: str | None = None
    """The layer that classifies a sequence, where it is one layer as ours."""


def lines(target: str, source: str, *, bias: bool = True, change: Any = None, note: str = "") -> Iterator[Part]:
    """Weight and bias of a layer."""
    yield Part(f"{target}.weight", f"{source}.weight", change, note)
    if bias:
        yield Part(f"{target}.bias", f"{source}.bias", change, note)


def position_rows(source: str, first: int, there: int, wanted: int) -> Part:
    """`wanted` rows of a table of `there` positions that begins at row `first`; the table is repeated where it ends."""
    notes = [f"rows {first}:{first + min(there, wanted)}"] if first or wanted < there else []
    if wanted > there:
        notes.append(f"the {there} positions repeated up to {wanted}")

    def rows(table: Tensor) -> Tensor:
        return table[first + torch.arange(wanted) % there]

    return Part("embed_positions.weight", source, rows if notes else None, "; ".join(notes))


# BERT, RoBERTa


def bert_fields(config: Any) -> dict[str, Any]:
    refuse_if(config.is_decoder, "is_decoder=True: it was made a decoder, whose layout ours does not share")
    writes = [name for name in config.architectures or [] if name.endswith(("LMHeadModel", "ForCausalLM"))]
    refuse_if(
        bool(writes),
        f"architectures={writes} with is_decoder=False: a head for the next token over attention that sees it already. "
        "Name its body or its ForMaskedLM in config.json, if that is what was trained",
    )
    relative = getattr(config, "position_embedding_type", None) or "absolute"
    refuse_if(relative != "absolute", f"position_embedding_type={relative!r}: positions inside the attention")
    act = activation(config.hidden_act)
    masked = any(name.endswith(("MaskedLM", "PreTraining")) for name in config.architectures or [])
    refuse_if(
        masked and act != "gelu" and config.model_type == "bert",
        f"hidden_act={config.hidden_act!r} in the head too: our head for masked tokens has GELU",
    )
    return {
        "causal": False, "hidden_size": config.hidden_size, "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads, "intermediate_size": config.intermediate_size,
        "positions": "learned", "horizon": config.max_position_embeddings - first_position(config),
        "norm": "layernorm", "norm_first": False, "norm_eps": config.layer_norm_eps, "embedding_norm": True,
        "mlp": act, "type_vocab_size": config.type_vocab_size, "pooling": "first",
        "hidden_dropout": config.hidden_dropout_prob, "attention_dropout": config.attention_probs_dropout_prob,
        "classifier_dropout": (
            config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        ),
    }  # fmt: skip


def first_position(config: Any) -> int:
    """RoBERTa and its kin count from the row after the padding's."""
    return 0 if config.model_type == "bert" else config.pad_token_id + 1


def bert_body(config: Any, horizon: int) -> Iterator[Part]:
    first = first_position(config)
    there = config.max_position_embeddings - first
    yield Part("embed_tokens.weight", "embeddings.word_embeddings.weight")
    yield position_rows("embeddings.position_embeddings.weight", first, there, horizon)
    if config.type_vocab_size:
        yield Part("embed_types.weight", "embeddings.token_type_embeddings.weight")
    yield from lines("embed_norm", "embeddings.LayerNorm")
    for i in range(config.num_hidden_layers):
        ours, theirs = f"layers.{i}", f"encoder.layer.{i}"
        for letter, word in (("q", "query"), ("k", "key"), ("v", "value")):
            yield from lines(f"{ours}.self_attn.{letter}_proj", f"{theirs}.attention.self.{word}")
        yield from lines(f"{ours}.self_attn.o_proj", f"{theirs}.attention.output.dense")
        yield from lines(f"{ours}.attn_norm", f"{theirs}.attention.output.LayerNorm")
        yield from lines(f"{ours}.mlp.up_proj", f"{theirs}.intermediate.dense")
        yield from lines(f"{ours}.mlp.down_proj", f"{theirs}.output.dense")
        yield from lines(f"{ours}.mlp_norm", f"{theirs}.output.LayerNorm")


def bert_masked() -> Iterator[Part]:
    yield from lines("lm_head.dense", "cls.predictions.transform.dense")
    yield from lines("lm_head.norm", "cls.predictions.transform.LayerNorm")
    yield from lines("lm_head.decoder", "cls.predictions.decoder")


def roberta_masked() -> Iterator[Part]:
    yield from lines("lm_head.dense", "lm_head.dense")
    yield from lines("lm_head.norm", "lm_head.layer_norm")
    yield from lines("lm_head.decoder", "lm_head.decoder")


# GPT-2


def gpt2_fields(config: Any) -> dict[str, Any]:
    refuse_if(config.add_cross_attention, "add_cross_attention=True: it attends to an encoder that is not there")
    refuse_if(not config.scale_attn_weights, "scale_attn_weights=False: ours divides by the root of the head's width")
    refuse_if(config.scale_attn_by_inverse_layer_idx, "scale_attn_by_inverse_layer_idx=True: a scale for each layer")
    return {
        "hidden_size": config.n_embd, "num_hidden_layers": config.n_layer, "num_attention_heads": config.n_head,
        "intermediate_size": config.n_inner or 4 * config.n_embd, "positions": "learned", "horizon": config.n_positions,
        "norm": "layernorm", "norm_eps": config.layer_norm_epsilon, "mlp": activation(config.activation_function),
        "hidden_dropout": config.resid_pdrop, "attention_dropout": config.attn_pdrop, "pooling": "last",
    }  # fmt: skip


def gpt2_body(config: Any, horizon: int) -> Iterator[Part]:
    width = config.n_embd
    yield Part("embed_tokens.weight", "wte.weight")
    yield position_rows("wpe.weight", 0, config.n_positions, horizon)
    for i in range(config.n_layer):
        ours, theirs = f"layers.{i}", f"h.{i}"
        for third, letter in enumerate("qkv"):
            note = f"columns {third * width}:{(third + 1) * width}"
            change = _third(third, width)
            yield Part(
                f"{ours}.self_attn.{letter}_proj.weight", f"{theirs}.attn.c_attn.weight", change, note + ", turned"
            )
            yield Part(f"{ours}.self_attn.{letter}_proj.bias", f"{theirs}.attn.c_attn.bias", change, note)
        for target, source in (
            ("self_attn.o_proj", "attn.c_proj"), ("mlp.up_proj", "mlp.c_fc"), ("mlp.down_proj", "mlp.c_proj")
        ):  # fmt: skip
            yield Part(f"{ours}.{target}.weight", f"{theirs}.{source}.weight", _turned, "turned")
            yield Part(f"{ours}.{target}.bias", f"{theirs}.{source}.bias")
        yield from lines(f"{ours}.attn_norm", f"{theirs}.ln_1")
        yield from lines(f"{ours}.mlp_norm", f"{theirs}.ln_2")
    yield from lines("norm", "ln_f")


def _turned(weight: Tensor) -> Tensor:
    return weight.T  # Conv1D keeps [in, out]


def _third(third: int, width: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x[..., third * width : (third + 1) * width].T if x.dim() == 2 else x[third * width :][:width]


# Llama, Mistral, Qwen2


def llama_fields(config: Any) -> dict[str, Any]:
    refuse_if(config.hidden_act not in ("silu", "swish"), f"hidden_act={config.hidden_act!r}: our gated MLP has SiLU")
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    refuse_if(kind != "default", f"rope_type={kind!r}: our rotary positions know a base and no scaling")
    part = rope.get("partial_rotary_factor", 1.0)
    refuse_if(part != 1.0, f"partial_rotary_factor={part}: our rotary positions turn the whole head")
    return {
        "hidden_size": config.hidden_size, "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads, "num_key_value_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None), "intermediate_size": config.intermediate_size,
        "positions": "rotary", "rotary_base": rope["rope_theta"], "horizon": config.max_position_embeddings,
        "norm": "rmsnorm", "norm_eps": config.rms_norm_eps, "mlp": "swiglu",
        "attention_bias": config.model_type == "qwen2" or getattr(config, "attention_bias", False),
        "mlp_bias": getattr(config, "mlp_bias", False), "attention_dropout": config.attention_dropout,
        "pooling": "last",
    }  # fmt: skip


def llama_body(config: Any, horizon: int) -> Iterator[Part]:
    fields = llama_fields(config)
    out_bias = fields["attention_bias"] and config.model_type != "qwen2"
    yield Part("embed_tokens.weight", "embed_tokens.weight")
    for i in range(config.num_hidden_layers):
        at = f"layers.{i}"
        for letter in "qkv":
            name = f"{at}.self_attn.{letter}_proj"
            yield from lines(name, name, bias=fields["attention_bias"])
        yield from lines(f"{at}.self_attn.o_proj", f"{at}.self_attn.o_proj", bias=out_bias)
        for name in ("gate", "up", "down"):
            yield from lines(f"{at}.mlp.{name}_proj", f"{at}.mlp.{name}_proj", bias=fields["mlp_bias"])
        yield from lines(f"{at}.attn_norm", f"{at}.input_layernorm", bias=False)
        yield from lines(f"{at}.mlp_norm", f"{at}.post_attention_layernorm", bias=False)
    yield from lines("norm", "norm", bias=False)


def window_of(config: Any) -> int | None:
    """How far the source's attention sees, where that is less than everything."""
    if getattr(config, "use_sliding_window", True) is False:
        return None
    kinds = getattr(config, "layer_types", None)  # Qwen2 slides from max_window_layers on, which may be no layer at all
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    window = getattr(config, "sliding_window", None)
    return window if window is not None and window < config.max_position_embeddings else None


def activation(name: str) -> str:
    refuse_if(name not in ACTIVATIONS, f"the activation {name!r}: ours are {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def refuse_if(wrong: bool, what: str) -> None:
    if wrong:
        raise ValueError(f"this checkpoint has {what}. It cannot be converted without changing what it computes")


BERT = Family(fields=bert_fields, body=bert_body, masked=bert_masked)
ROBERTA = Family(fields=bert_fields, body=bert_body, masked=roberta_masked)
GPT2 = Family(fields=gpt2_fields, body=gpt2_body, row_head="score")
LLAMA = Family(fields=llama_fields, body=llama_body, token_head="score", row_head="score")
FAMILIES = {
    "bert": BERT, "roberta": ROBERTA, "xlm-roberta": ROBERTA, "camembert": ROBERTA, "gpt2": GPT2, "llama": LLAMA,
    "mistral": LLAMA, "qwen2": LLAMA,
}  # fmt: skip
