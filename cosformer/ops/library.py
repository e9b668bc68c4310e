"""The operator as torch sees it: registered with torch.library, so that it compiles, exports and differentiates.

Real implementation, fake tensors, gradient, second gradient and vmap of `cosformer::attention`, and the decoding step.
Registered by hand for the two operators of training: `torch.library.custom_op` and `register_autograd` do the same with
checks at every call that cost more CPU time than the launch of a kernel.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from cosformer.ops import chunked
from cosformer.ops.backends import Choice, choose_backend
from cosformer.ops.checks import check_horizon
from cosformer.ops.features import angle, empty_like_rows, no_autocast, sum_dtype
from cosformer.ops.packed import Sequences, batch_sequences, packed_sequences
from cosformer.ops.problem import Problem


def sequences_of(
    q: Tensor, k: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, past: Tensor | None, causal: bool, horizon: int
) -> tuple[Sequences, int]:
    """The sequences and the horizon, once the values of offsets and lengths can be looked at."""
    if cu_q is None or cu_k is None:
        sequences = batch_sequences(q.shape[0], q.shape[2], k.shape[2])
    else:
        sequences = packed_sequences(cu_q, cu_k, q.shape[2], k.shape[2], causal)
    if horizon == 0:
        return sequences, sequences.longest
    held = past.reshape(-1).tolist() if past is not None else [0]
    if not sequences.packed:
        check_horizon(horizon, max(q.shape[2], k.shape[2]), max(held))
        return sequences, horizon
    held = held * len(sequences) if len(held) == 1 else held
    lengths = zip(sequences.q_lengths, sequences.k_lengths, held, strict=True)
    longest = max(((max(t, s), n) for t, s, n in lengths), key=sum)
    check_horizon(horizon, *longest)
    return sequences, horizon


def backend_for(backend: str, q: Tensor, v: Tensor) -> Choice:
    return choose_backend(backend, q.device, dtype=q.dtype, widest=max(q.shape[3], v.shape[3]))


def in_layout(result: Tensor, like: Tensor) -> Tensor:
    """`result` in the memory order promised to the compiler: that of empty_like_rows."""
    heads_inside = like.stride(1) < like.stride(2)
    as_promised = (result.transpose(1, 2) if heads_inside else result).is_contiguous()
    return result if as_promised else empty_like_rows(like, result.shape[3]).copy_(result)


LIBRARY = torch.library.Library("cosformer", "FRAGMENT")


def define(name: str, function: Callable) -> None:
    schema = torch.library.infer_schema(function, mutates_args=())
    LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")


def differentiable(name: str, setup: Callable, backward: Callable) -> None:
    """Gradients of an operator: `setup(ctx, inputs, output)` keeps what `backward(ctx, *gradients)` needs."""
    operator = getattr(torch.ops.cosformer, name).default

    def below(*inputs: object) -> object:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*inputs)

    class Differentiable(torch.autograd.Function):
        forward = staticmethod(below)
        setup_context = staticmethod(setup)

    Differentiable.backward = staticmethod(backward)  # type: ignore[method-assign]
    Differentiable.__name__ = name

    def dispatch(*inputs: object) -> object:
        wanted = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
        return Differentiable.apply(*inputs) if wanted else below(*inputs)

    LIBRARY.impl(name, dispatch, "Autograd")


def _attention(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None,
    state: Tensor | None, norm: Tensor | None, past: Tensor | None, causal: bool, horizon: int, feature_map: str,
    normalize: bool, eps: float, return_state: bool, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sequences, horizon = sequences_of(q, k, cu_q, cu_k, past, causal, horizon)
    problem = Problem(causal, angle(horizon), feature_map, normalize, eps, return_state)
    with no_autocast(q):
        run = backend_for(backend, q, v).backend.forward
        o, z, sums, norms = run(q, k, v, key_mask, state, norm, sequences, problem)
    return in_layout(o, q), z, sums, norms


define("attention", _attention)


@torch.library.register_fake("cosformer::attention", lib=LIBRARY)
def _(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None,
    state: Tensor | None, norm: Tensor | None, past: Tensor | None, causal: bool, horizon: int, feature_map: str,
    normalize: bool, eps: float, return_state: bool, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dtype, n = sum_dtype(q.dtype), q.shape[0] if cu_q is None else cu_q.shape[0] - 1
    shape = (n, k.shape[1], 2, k.shape[3])
    return (
        empty_like_rows(q, v.shape[3]), q.new_empty(q.shape[:3] if normalize else (0,), dtype=dtype),
        q.new_empty((*shape, v.shape[3]) if return_state else (0,), dtype=dtype),
        q.new_empty(shape if return_state else (0,), dtype=dtype),
    )  # fmt: skip


def _attention_backward(
    do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor,
    key_mask: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None, state: Tensor | None, norm: Tensor | None,
    past: Tensor | None, causal: bool, horizon: int, feature_map: str, normalize: bool, eps: float, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sequences, horizon = sequences_of(q, k, cu_q, cu_k, past, causal, horizon)
    problem = Problem(causal, angle(horizon), feature_map, normalize, eps)
    with no_autocast(q):
        dq, dk, dv, ds, dn = backend_for(backend, q, v).backend.backward(
            do, dstate, dnorm, q, k, v, o, z, key_mask, state, norm, sequences, problem
        )
    ds, dn = (z.new_empty(0) if x is None else x for x in (ds, dn))
    return in_layout(dq, q), in_layout(dk, k), in_layout(dv, v), ds, dn


define("attention_backward", _attention_backward)


@torch.library.register_fake("cosformer::attention_backward", lib=LIBRARY)
def _(
    do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor,
    key_mask: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None, state: Tensor | None, norm: Tensor | None,
    past: Tensor | None, causal: bool, horizon: int, feature_map: str, normalize: bool, eps: float, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        empty_like_rows(q, q.shape[3]), empty_like_rows(k, k.shape[3]), empty_like_rows(v, v.shape[3]),
        z.new_empty(0 if state is None else state.shape), z.new_empty(0 if norm is None else norm.shape),
    )  # fmt: skip


_TENSORS = 9  # of the arguments of cosformer::attention, how many are tensors; options follow


def _setup(ctx, inputs, output) -> None:
    q, k, v, key_mask, cu_q, cu_k, state, norm, past, *options = inputs
    ctx.save_for_backward(q, k, v, output[0], output[1], key_mask, cu_q, cu_k, state, norm, past)
    ctx.options = options
    ctx.set_materialize_grads(False)


def _backward(ctx, do, dz, dstate, dnorm):
    q, k, v, o, z, key_mask, cu_q, cu_k, state, norm, past = ctx.saved_tensors
    causal, horizon, feature_map, normalize, eps, return_state, backend = ctx.options
    nothing = (None,) * len(ctx.options)
    if not return_state:
        dstate = dnorm = None
    if do is None and dstate is None and dnorm is None:
        return (None,) * _TENSORS + nothing
    if do is None:
        do = torch.zeros_like(o)
    if dstate is None and dnorm is not None:
        dstate = dnorm.new_zeros(*dnorm.shape, v.shape[3])
    if dnorm is None and dstate is not None:
        dnorm = dstate.new_zeros(dstate.shape[:-1])
    dq, dk, dv, ds, dn = torch.ops.cosformer.attention_backward(
        do, dstate, dnorm, q, k, v, o, z, key_mask, cu_q, cu_k, state, norm, past, causal, horizon, feature_map,
        normalize, eps, backend,
    )  # fmt: skip
    return (dq, dk, dv, None, None, None, None if state is None else ds, None if norm is None else dn, None, *nothing)


differentiable("attention", _setup, _backward)


def _setup_double(ctx, inputs, output) -> None:
    do, dstate, dnorm, q, k, v, _, _, *rest = inputs
    ctx.save_for_backward(do, dstate, dnorm, q, k, v, *rest[:6])
    ctx.options = rest[6:]


def _tracked(x: Tensor) -> Tensor:
    """x, cut off from its own past: `do` may depend on q, and q may be k, and those paths belong to the engine that
    called, not to the inner differentiation. (A view, so third derivatives still find their way.)"""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def _double_backward(ctx, *grads):
    """Second derivatives: differentiate the plain torch form twice. Its memory grows with every frame of the length."""
    do, dstate, dnorm, q, k, v, key_mask, cu_q, cu_k, state, norm, past = ctx.saved_tensors
    causal, horizon, feature_map, normalize, eps, _ = ctx.options
    sequences, horizon = sequences_of(q, k, cu_q, cu_k, past, causal, horizon)
    problem = Problem(causal, angle(horizon), feature_map, normalize, eps, dstate is not None)
    again = torch.is_grad_enabled()
    with torch.enable_grad(), no_autocast(q):
        q, k, v = _tracked(q), _tracked(k), _tracked(v)
        state, norm = (None if x is None else _tracked(x) for x in (state, norm))
        outer, inner = [None if x is None else _tracked(x) for x in (do, dstate, dnorm)], [q, k, v, state, norm]
        o, _, sums, norms = chunked.forward(q, k, v, key_mask, state, norm, sequences, problem)
        pairs = [(y, dy) for y, dy in zip((o, sums, norms), outer, strict=True) if dy is not None]
        wanted = [x for x in inner if x is not None]
        first = torch.autograd.grad(
            [y for y, _ in pairs], wanted, [dy for _, dy in pairs], create_graph=True, materialize_grads=True
        )
        weights = [g for x, g in zip(inner, grads, strict=True) if x is not None]
        inputs = [x for x in (*outer, *inner) if x is not None]
        second = iter(torch.autograd.grad(first, inputs, weights, create_graph=again, allow_unused=True))
    d_outer = [None if x is None else next(second) for x in outer]
    dq, dk, dv, ds, dn = (None if x is None else next(second) for x in inner)
    return (*d_outer, dq, dk, dv, None, None, None, None, None, ds, dn, None, *(None,) * len(ctx.options))


differentiable("attention_backward", _setup_double, _double_backward)


def fold(info, in_dims, args, tensors: int):
    """A vmapped dimension becomes part of the batch."""
    folded = []
    for x, dim in zip(args[:tensors], in_dims[:tensors], strict=True):
        if x is not None:
            x = x.unsqueeze(0).expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.flatten(0, 1)
        folded.append(x)
    return (*folded, *args[tensors:])


def unfold(info, results):
    parts = [(x, None) if x.numel() == 0 else (x.unflatten(0, (info.batch_size, -1)), 0) for x in results]
    return tuple(x for x, _ in parts), tuple(dim for _, dim in parts)


def refuse_packed(*tensors: Tensor | None) -> None:
    if any(x is not None for x in tensors):
        raise NotImplementedError(
            "vmap over packed sequences (cu_seqlens): a packed row has no batch to fold into; pad them"
        )


def _vmap_attention(info, in_dims, *args):
    refuse_packed(args[4], args[5], args[8])
    return unfold(info, torch.ops.cosformer.attention(*fold(info, in_dims, args, _TENSORS)))


torch.library.register_vmap("cosformer::attention", _vmap_attention, lib=LIBRARY)


def _vmap_attention_backward(info, in_dims, *args):
    refuse_packed(args[9], args[10], args[13])
    return unfold(info, torch.ops.cosformer.attention_backward(*fold(info, in_dims, args, 14)))


torch.library.register_vmap("cosformer::attention_backward", _vmap_attention_backward, lib=LIBRARY)


def step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, norm: Tensor, key_mask: Tensor | None, horizon: int,
    feature_map: str, normalize: bool, eps: float, backend: str,
) -> Tensor:  # fmt: skip
    problem = _step_problem(horizon, feature_map, normalize, eps)
    return backend_for(backend, q, v).backend.step(q, k, v, state, norm, key_mask, problem)


@functools.lru_cache(maxsize=64)
def _step_problem(horizon: int, feature_map: str, normalize: bool, eps: float) -> Problem:
    return Problem(True, angle(horizon), feature_map, normalize, eps)


_step_op = torch.library.custom_op("cosformer::step", step, mutates_args=("state", "norm"))


@_step_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, norm: Tensor, key_mask: Tensor | None, horizon: int,
    feature_map: str, normalize: bool, eps: float, backend: str,
) -> Tensor:  # fmt: skip
    return empty_like_rows(q, v.shape[3])
