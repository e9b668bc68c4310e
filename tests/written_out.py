"""The models once more, for one row without padding, written apart from the package: plain loops, nothing shared."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from definition import define
from torch import Tensor


def norm(module: Any, x: Tensor) -> Tensor:
    if getattr(module, "bias", None) is None:
        return x / (x.pow(2).mean(-1, keepdim=True) + module.eps).sqrt() * module.weight
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + module.eps).sqrt() * module.weight + module.bias


def turned(x: Tensor, base: float) -> Tensor:
    """Rotary positions, a pair at a time, x [T, K]."""
    x, half = x.clone(), x.shape[1] // 2
    for t in range(x.shape[0]):
        for i in range(half):
            a = t * base ** (-2 * i / x.shape[1])
            first, second = x[t, i].clone(), x[t, i + half].clone()
            x[t, i] = first * math.cos(a) - second * math.sin(a)
            x[t, i + half] = second * math.cos(a) + first * math.sin(a)
    return x


def attention(module: Any, config: Any, x: Tensor, y: Tensor, causal: bool, rotary: bool) -> Tensor:
    """x [T, E] attends to y [S, E]."""
    name, width, shared = config.attentions[module.kind.layer], config.head_dim, config.num_attention_heads
    group, outs = shared // config.num_key_value_heads, []
    at_q, at_k = torch.arange(len(x)), torch.arange(len(y))
    keep = at_k[None] <= at_q[:, None] if causal else torch.ones(len(x), len(y), dtype=torch.bool)
    q, k, v = module.q_proj(x), module.k_proj(y), module.v_proj(y)
    for h in range(shared):
        mine, theirs = slice(h * width, (h + 1) * width), slice(h // group * width, (h // group + 1) * width)
        qh, kh, vh = q[:, mine], k[:, theirs], v[:, theirs]
        if rotary:
            qh, kh = turned(qh, config.rotary_base), turned(kh, config.rotary_base)
        if name == "softmax":
            o = (qh @ kh.T / math.sqrt(width)).masked_fill(~keep, -math.inf).softmax(-1) @ vh
        else:
            o = define(
                qh, kh, vh, at_q=at_q, at_k=at_k, keep=keep, horizon=config.horizon, feature_map=config.feature_map,
                normalize=config.normalizer == "sum",
            )  # fmt: skip
            o = o if config.normalizer == "sum" else norm(module.kind.norm, o)
        outs.append(o)
    return module.o_proj(torch.cat(outs, -1))


def mlp(module: Any, x: Tensor) -> Tensor:
    if module.kind == "swiglu":
        gate = module.gate_proj(x)
        return module.down_proj(gate * torch.sigmoid(gate) * module.up_proj(x))
    return module.down_proj(F.gelu(module.up_proj(x), approximate="tanh" if module.kind == "gelu_tanh" else "none"))


def stack(model: Any, ids: Tensor, encoded: Tensor | None = None, types: Tensor | None = None) -> Tensor:
    """last_hidden_state [T, E] of a CosformerModel in float64 for ids [T]."""
    config = model.config
    x = model.embed_tokens.weight[ids]
    if config.scale_embeddings:
        x = x * math.sqrt(config.hidden_size)
    if config.positions == "learned":
        x = x + model.embed_positions.weight[: len(ids)]
    if config.positions == "sinusoidal":
        half = config.hidden_size // 2
        for t in range(len(ids)):
            angles = [t * 10_000 ** (-i / (half - 1)) for i in range(half)]
            x[t] = x[t] + torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=x.dtype)
    if model.embed_types is not None:
        x = x + model.embed_types.weight[torch.zeros_like(ids) if types is None else types]
    if config.embedding_norm:
        x = norm(model.embed_norm, x)
    for block in model.layers:
        parts = [(lambda h, b=block: attention(b.self_attn, config, h, h, config.causal, config.positions == "rotary"),
                  block.attn_norm)]  # fmt: skip
        if encoded is not None:
            parts.append(
                (lambda h, b=block: attention(b.cross_attn, config, h, encoded, False, False), block.cross_norm)
            )
        parts.append((lambda h, b=block: mlp(b.mlp, h), block.mlp_norm))
        for part, its_norm in parts:
            x = x + part(norm(its_norm, x)) if config.norm_first else norm(its_norm, x + part(x))
    return norm(model.norm, x) if config.norm_first else x
