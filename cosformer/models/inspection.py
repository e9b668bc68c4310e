"""What a config amounts to, without loading weights; and the attention weights of a text, layer by layer."""

from typing import Any

import torch
from torch import Tensor, nn

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import KINDS, AttentionKind
from cosformer.models.writing import class_of

LONGEST_MAP = 2_048


def describe(config: CosformerConfig) -> dict[str, Any]:
    """Parameters, bytes kept while generating, floating-point operations, and each block's attention. For programs."""
    with torch.device("meta"):
        model = class_of(config)(config)
    assert config.head_dim is not None
    assert config.num_key_value_heads is not None
    dtype: Any = config.dtype or torch.float32
    layers = []
    for stack, causal, across in _stacks(config):
        for i, name in enumerate(config.attentions):
            cost = KINDS[name].cost(config, causal=causal)
            flops, by_context, kept, per_token = None, 0, 0, 0
            if cost is not None:
                flops, by_context = cost.flops, cost.flops_of_context
                kept, per_token = cost.state_bytes, cost.cache_bytes_per_token
            if across and flops is not None:  # the encoder's state, or its keys and values
                kept, flops, by_context = 2 * kept, 2 * flops, 2 * by_context
            layers.append({
                "stack": stack, "layer": i, "attention": name, "causal": causal, "cross_attention": across,
                "state_bytes": kept, "cache_bytes_per_token": per_token, "flops_per_token": flops,
                "flops_per_token_of_context": by_context,
            })  # fmt: skip
    weights = _products(model)
    known = all(layer["flops_per_token"] is not None for layer in layers)
    return {
        "class": type(model).__name__,
        "parameters": _parameters(model),
        "layers": layers,
        "heads": config.num_attention_heads,
        "key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "positions": config.positions,
        "horizon": config.horizon,
        "has_longest": config.has_longest,
        "feature_map": config.feature_map,
        "normalizer": config.normalizer,
        "dtype": str(dtype).removeprefix("torch."),
        "state_bytes": sum(layer["state_bytes"] for layer in layers),
        "cache_bytes_per_token": sum(layer["cache_bytes_per_token"] for layer in layers),
        "flops_per_token": {
            "weights": 2 * weights,
            "attention": sum(layer["flops_per_token"] for layer in layers) if known else None,
            "attention_per_token_of_context": sum(layer["flops_per_token_of_context"] for layer in layers),
        },
    }


def training_flops_per_token(config: CosformerConfig, length: int) -> float:
    """Of a step of training on sequences of `length`: three times the forward, a product having two gradients.

    `config.architectures` says which head is counted, as it does once a model is saved; without it there is none.
    What is computed again in backward does not count. A causal token could see half of the length on average. Patterns
    are counted as for sequences longer than what they see.
    """
    found = describe(config)
    once, by_context = found["flops_per_token"], 0.0
    if once["attention"] is None:
        raise ValueError(f"attention={config.attention!r} does not say what it costs: give its kind a `cost`")
    for layer in found["layers"]:
        by_context += layer["flops_per_token_of_context"] * ((length + 1) / 2 if layer["causal"] else length)
    return 3 * (once["weights"] + once["attention"] + by_context)


def _stacks(config: CosformerConfig) -> list[tuple[str, bool, bool]]:
    """Name, causal, cross attention of each."""
    if config.is_encoder_decoder:
        return [("encoder", False, False), ("decoder", True, True)]
    return [("decoder" if config.causal else "encoder", config.causal, False)]


def _parameters(model: nn.Module) -> dict[str, int]:
    """Each tensor once, however often it is used."""
    parts = {"embeddings": 0, "attention": 0, "mlp": 0, "norms": 0, "heads": 0}
    for name, p in model.named_parameters():
        if "embed_" in name and "norm" not in name:
            part = "embeddings"
        elif "self_attn." in name or "cross_attn." in name:
            part = "attention"
        elif ".mlp." in name:
            part = "mlp"
        elif "norm" in name and "lm_head" not in name:
            part = "norms"
        else:
            part = "heads"
        parts[part] += p.numel()
    return {"total": sum(parts.values()), **parts}


def _products(model: nn.Module) -> int:
    """Weights that every token is multiplied by: all linear layers, the output embeddings too where they are tied."""
    return sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))


@torch.no_grad()
def attention_maps(model: Any, input_ids: Tensor) -> list[Tensor]:
    """The weights [H, T, T] of each block for one sequence [1, T], as its kind gives them; quadratic."""
    if model.config.is_encoder_decoder:
        raise ValueError("attention maps are drawn for one stack of blocks: an encoder–decoder has two")
    if input_ids.shape[0] != 1 or not 0 < input_ids.shape[1] <= LONGEST_MAP:
        raise ValueError(
            f"tokens of shape {tuple(input_ids.shape)}: a map is quadratic; give one sequence of at most {LONGEST_MAP}"
        )
    body = model if hasattr(model, "layers") else model.model
    maps: list[Tensor] = []

    def watch(kind: Any) -> Any:
        plain = kind.attend

        def attend(q: Tensor, k: Tensor, v: Tensor, layout: Any, cache: Any) -> Tensor:
            kind.__dict__.pop("attend")  # weights may be read off its answers
            maps.append(kind.weights(q, k, layout)[0].float().cpu())
            return plain(q, k, v, layout, cache)

        return attend

    kinds = [block.self_attn.kind for block in body.layers]
    for kind in kinds:
        if type(kind).attend is AttentionKind.attend:
            raise ValueError(f"{type(kind).__name__} has no weights to draw: it has no self attention")
    try:
        for kind in kinds:
            kind.attend = watch(kind)
        body(input_ids, use_cache=False)
    finally:
        for kind in kinds:
            kind.__dict__.pop("attend", None)
    return maps
