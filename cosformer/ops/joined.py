"""Self attention of q, k and v that one product made: they lie side by side, and so do their gradients.

The gradient of a product wants theirs in one piece: made apart, they would have to be copied there.
"""

import torch
from torch import Tensor

from cosformer.ops.checks import (
    check_horizon,
    check_inputs,
    check_joined,
    check_key_mask,
    check_no_tangents,
    check_offsets,
    check_options,
    check_tensors,
)
from cosformer.ops.features import angle, empty_like_rows, lower_for_autocast, no_autocast, sum_dtype
from cosformer.ops.library import (
    LIBRARY,
    backend_for,
    define,
    differentiable,
    fold,
    in_layout,
    refuse_packed,
    sequences_of,
    unfold,
)
from cosformer.ops.problem import Problem


def joined_attention(
    qkv: Tensor, heads: int, *, horizon: int, causal: bool = False, key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None, feature_map: str = "relu", normalize: bool = True, eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:  # fmt: skip
    """`cosformer_attention` of the parts of qkv [B,T,H + 2·Hkv,K]: H heads of queries, then keys, then values.

    o [B,H,T,K]. horizon: at least T. The rest as there.
    """
    check_options(feature_map, backend, eps)
    check_joined(qkv, heads)
    q, k, v = parts(qkv, heads)
    check_tensors(q, k, v)
    check_no_tangents(q, k, v)
    check_inputs(q, k, v)
    check_key_mask(key_mask, k)
    check_offsets(cu_seqlens, cu_seqlens, q)
    check_horizon(horizon, 1 if cu_seqlens is not None else qkv.shape[1], 0)
    (qkv,) = lower_for_autocast(qkv)
    return torch.ops.cosformer.attention_joined(
        qkv, key_mask, cu_seqlens, heads, causal, horizon, feature_map, normalize, eps, backend
    )[0]


def parts(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q [B, H, T, K], k and v [B, Hkv, T, K], as views."""
    shared = (qkv.shape[2] - heads) // 2
    q, k, v = qkv.transpose(1, 2).split([heads, shared, shared], 1)
    return q, k, v


def _attention_joined(
    qkv: Tensor, key_mask: Tensor | None, cu: Tensor | None, heads: int, causal: bool, horizon: int, feature_map: str,
    normalize: bool, eps: float, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v = parts(qkv, heads)
    sequences, horizon = sequences_of(q, k, cu, cu, None, causal, horizon)
    problem = Problem(causal, angle(horizon), feature_map, normalize, eps)
    with no_autocast(q):
        o, z, _, _ = backend_for(backend, q, v).backend.forward(q, k, v, key_mask, None, None, sequences, problem)
    return in_layout(o, q), z


define("attention_joined", _attention_joined)


@torch.library.register_fake("cosformer::attention_joined", lib=LIBRARY)
def _(
    qkv: Tensor, key_mask: Tensor | None, cu: Tensor | None, heads: int, causal: bool, horizon: int, feature_map: str,
    normalize: bool, eps: float, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q = parts(qkv, heads)[0]
    z = qkv.new_empty(q.shape[:3] if normalize else (0,), dtype=sum_dtype(qkv.dtype))
    return empty_like_rows(q, q.shape[3]), z


def _attention_joined_backward(
    do: Tensor, qkv: Tensor, o: Tensor, z: Tensor, key_mask: Tensor | None, cu: Tensor | None, heads: int,
    causal: bool, horizon: int, feature_map: str, normalize: bool, eps: float, backend: str,
) -> Tensor:  # fmt: skip
    q, k, v = parts(qkv, heads)
    sequences, horizon = sequences_of(q, k, cu, cu, None, causal, horizon)
    problem = Problem(causal, angle(horizon), feature_map, normalize, eps)
    gradient = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    into = parts(gradient, heads)
    with no_autocast(q):
        found = backend_for(backend, q, v).backend.backward(
            do, None, None, q, k, v, o, z, key_mask, None, None, sequences, problem, into
        )
    for here, made in zip(into, found[:3], strict=True):
        if made is not here:
            here.copy_(made)
    return gradient


define("attention_joined_backward", _attention_joined_backward)


@torch.library.register_fake("cosformer::attention_joined_backward", lib=LIBRARY)
def _(
    do: Tensor, qkv: Tensor, o: Tensor, z: Tensor, key_mask: Tensor | None, cu: Tensor | None, heads: int,
    causal: bool, horizon: int, feature_map: str, normalize: bool, eps: float, backend: str,
) -> Tensor:  # fmt: skip
    return qkv.new_empty(qkv.shape)


def _setup(ctx, inputs, output) -> None:
    qkv, key_mask, cu, *options = inputs
    ctx.save_for_backward(qkv, *output, key_mask, cu)
    ctx.options = options
    ctx.set_materialize_grads(False)


def _backward(ctx, do, dz):
    nothing = (None,) * (2 + len(ctx.options))
    if do is None:
        return (None, *nothing)
    qkv, o, z, key_mask, cu = ctx.saved_tensors
    if not torch.is_grad_enabled():
        return (torch.ops.cosformer.attention_joined_backward(do, qkv, o, z, key_mask, cu, *ctx.options), *nothing)
    heads, *options = ctx.options  # of second derivatives the operator for parts knows
    found = torch.ops.cosformer.attention_backward(
        do, None, None, *parts(qkv, heads), o, z, key_mask, cu, cu, None, None, None, *options
    )
    return (torch.cat([x.transpose(1, 2) for x in found[:3]], 2), *nothing)


differentiable("attention_joined", _setup, _backward)


def _vmap(info, in_dims, *args):
    refuse_packed(args[2])
    return unfold(info, torch.ops.cosformer.attention_joined(*fold(info, in_dims, args, 3)))


torch.library.register_vmap("cosformer::attention_joined", _vmap, lib=LIBRARY)


def _vmap_backward(info, in_dims, *args):
    refuse_packed(args[5])
    gradient = torch.ops.cosformer.attention_joined_backward(*fold(info, in_dims, args, 6))
    (gradient,), (dim,) = unfold(info, (gradient,))
    return gradient, dim


torch.library.register_vmap("cosformer::attention_joined_backward", _vmap_backward, lib=LIBRARY)
