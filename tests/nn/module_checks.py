"""What the tests of CosformerAttention share.

Where nothing else is said modules and inputs are float64, so that equal means equal to about 1e-7.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from cosformer import attention_reference
from cosformer.nn import CosformerAttention

E, H, M = 24, 4, 64  # width, heads, horizon


def make(embed_dim: int = E, num_heads: int = H, **options: Any) -> CosformerAttention:
    """A module in float64, batch first, whose biases are not zero: a bias forgotten somewhere must show."""
    options = {"dtype": torch.float64, "batch_first": True, "horizon": M} | options
    module = CosformerAttention(embed_dim, num_heads, **options)
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() == 1:
                p.normal_()
    return module


def draw(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def projections(module: CosformerAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [B, H, T, K] of batch-first inputs, from the parameters by name."""
    p = dict(module.named_parameters())
    width = module.embed_dim // module.num_heads
    e, kv = module.embed_dim, module.num_kv_heads * width
    if "in_proj_weight" in p:
        w = (p["in_proj_weight"][:e], p["in_proj_weight"][e : e + kv], p["in_proj_weight"][e + kv :])
    else:
        w = (p["q_proj_weight"], p["k_proj_weight"], p["v_proj_weight"])
    b = p.get("in_proj_bias", torch.zeros(e + 2 * kv, dtype=query.dtype))
    flat = (query @ w[0].T + b[:e], key @ w[1].T + b[e : e + kv], value @ w[2].T + b[e + kv :])
    q, k, v = (x.reshape(*x.shape[:2], -1, width).permute(0, 2, 1, 3) for x in flat)
    return q, k, v


def composed(module: CosformerAttention, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """What the module must return for batch-first inputs: the quadratic definition between plain products."""
    names = ("horizon", "feature_map", "normalize", "eps")
    options = {name: getattr(module, name) for name in names} | options
    o = attention_reference(*projections(module, query, key, value), **options)
    p = dict(module.named_parameters())
    output = o.permute(0, 2, 1, 3).reshape(*query.shape[:2], -1) @ p["out_proj.weight"].T
    return output + p["out_proj.bias"] if "out_proj.bias" in p else output


def assert_grads_equal(ours: nn.Module, theirs: nn.Module) -> None:
    theirs_by_name = dict(theirs.named_parameters())
    assert theirs_by_name
    for name, p in ours.named_parameters():
        assert p.grad is not None, name
        assert_close(p.grad, theirs_by_name[name].grad, msg=lambda m, name=name: f"{name}: {m}")


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None, **_: object) -> Tensor:
    """In place of the operator it turns the module into nn.MultiheadAttention, if all around it is right."""
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        keep = keep.tril()
    if key_mask is not None:
        keep = keep & key_mask[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
