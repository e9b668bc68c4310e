"""Calls the compiled kernel: describes each tensor to it, and spells forward, backward and step as walks over time."""

import ctypes
import functools
from ctypes import c_double, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from cosformer.ops import state_gradients
from cosformer.ops.cpu.build import load_library
from cosformer.ops.features import empty_like_rows, sum_dtype
from cosformer.ops.packed import Sequences, by_sequence
from cosformer.ops.problem import Gradients, Into, Problem, Results

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_MAPS = {"identity": 0, "relu": 1, "leaky_relu": 2, "elu1": 3, "silu": 4}


class _Operand(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p), ("strides", c_int64 * 4), ("width", c_int64), ("heads", c_int64), ("length", c_int64),
        ("scale", c_void_p), ("column", c_void_p), ("mask", c_void_p), ("mask_strides", c_int64 * 2),
        ("dtype", c_int32), ("map", c_int32), ("ones", c_int32), ("unused", c_int32),
    )  # fmt: skip


class _Walk(ctypes.Structure):
    _fields_ = (
        ("a", _Operand), ("b", _Operand), ("c", _Operand), ("out", _Operand), ("x", _Operand),
        ("sequences", c_int64), ("heads", c_int64), ("group_a", c_int64), ("group_b", c_int64),
        ("a_start", c_void_p), ("a_length", c_void_p), ("b_start", c_void_p), ("b_length", c_void_p),
        ("state_in", c_void_p), ("norm_in", c_void_p), ("state_out", c_void_p), ("norm_out", c_void_p), ("z", c_void_p),
        ("theta", c_double), ("eps", c_double), ("threads", c_int64),
        ("packed", c_int32), ("causal", c_int32), ("reverse", c_int32), ("unused", c_int32),
    )  # fmt: skip


class _RowGradients(ctypes.Structure):
    _fields_ = (
        ("grad", _Operand), ("out", _Operand), ("z", c_void_p), ("scale", c_void_p), ("column", c_void_p),
        ("batch", c_int64), ("threads", c_int64), ("eps", c_double),
    )  # fmt: skip


class _Step(ctypes.Structure):
    _fields_ = (
        ("q", _Operand), ("k", _Operand), ("v", _Operand), ("o", _Operand),
        ("batch", c_int64), ("heads", c_int64), ("group", c_int64), ("state", c_void_p), ("norm", c_void_p),
        ("theta", c_double), ("eps", c_double), ("threads", c_int64), ("normalize", c_int32), ("unused", c_int32),
    )  # fmt: skip


def _operand(
    x: Tensor, *, map: str = "identity", mask: Tensor | None = None, scale: Tensor | None = None,
    column: Tensor | None = None, ones: bool = False,
) -> _Operand:  # fmt: skip
    """x [B, H, T, D]; mask [B, T] bool; scale, column [B, H, T] contiguous. The caller keeps them alive."""
    o = _Operand()
    o.data, o.strides[:], o.dtype = x.data_ptr(), x.stride(), _DTYPES[x.dtype]
    _, o.heads, o.length, o.width = x.shape
    o.map, o.ones = _MAPS[map], ones
    if mask is not None:
        o.mask, o.mask_strides[:] = mask.data_ptr(), mask.stride()
    if scale is not None:
        o.scale = scale.data_ptr()
    if column is not None:
        o.column = column.data_ptr()
    return o


def _walk(
    a: _Operand, b: _Operand, c: _Operand, out: _Operand, *, problem: Problem, sequences: Sequences, heads: int,
    dtype: torch.dtype, x: _Operand | None = None, backward_in_time: bool = False, targets_are_keys: bool = False,
    state_in: Tensor | None = None, norm_in: Tensor | None = None, state_out: Tensor | None = None,
    norm_out: Tensor | None = None, z: Tensor | None = None,
) -> None:  # fmt: skip
    n = len(sequences)
    lists = [sequences.q_starts, sequences.q_lengths, sequences.k_starts, sequences.k_lengths]
    if targets_are_keys:
        lists = lists[2:] + lists[:2]
    arrays = [(c_int64 * n)(*values) for values in lists]
    w = _Walk(a=a, b=b, c=c, out=out)
    if x is not None:
        w.x = x
    w.sequences, w.heads, w.group_a, w.group_b = n, heads, a.heads // heads, b.heads // heads
    w.a_start, w.a_length, w.b_start, w.b_length = (ctypes.addressof(array) for array in arrays)
    for name, tensor in (
        ("state_in", state_in), ("norm_in", norm_in), ("state_out", state_out), ("norm_out", norm_out), ("z", z),
    ):  # fmt: skip
        if tensor is not None:
            setattr(w, name, tensor.data_ptr())
    w.theta, w.eps, w.threads = problem.theta, problem.eps, _threads()
    w.packed, w.causal, w.reverse = sequences.packed, problem.causal, backward_in_time
    _call("cosformer_walk", dtype, w)


def forward(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None,
    sequences: Sequences, problem: Problem,
) -> Results:  # fmt: skip
    n, heads, dtype = len(sequences), k.shape[1], sum_dtype(q.dtype)
    o = _result_like(q, v.shape[3])
    z = q.new_empty(q.shape[:3] if problem.normalize else (0,), dtype=dtype)
    shape = (n, heads, 2, k.shape[3]) if problem.return_state else (0,)
    state_out = q.new_empty((*shape, v.shape[3]) if problem.return_state else (0,), dtype=dtype)
    norm_out = q.new_empty(shape, dtype=dtype)
    state, norm = (x.contiguous() if x is not None else None for x in (state, norm))
    _walk(
        _operand(q, map=problem.feature_map), _operand(k, map=problem.feature_map, mask=key_mask),
        _operand(v, mask=key_mask), _operand(o), problem=problem, sequences=sequences, heads=heads, dtype=dtype,
        state_in=state, norm_in=norm, z=z if problem.normalize else None,
        state_out=state_out if problem.return_state else None, norm_out=norm_out if problem.return_state else None,
    )  # fmt: skip
    return Results(o, z, state_out, norm_out)


def backward(
    do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor,
    key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None, sequences: Sequences, problem: Problem,
    into: Into = None,
) -> Gradients:  # fmt: skip
    """Three walks: dq forward in time, dk and dv against it (any order where attention is not causal)."""
    n, heads, dtype = len(sequences), k.shape[1], sum_dtype(q.dtype)
    (kw, vw), causal, phi = (k.shape[3], v.shape[3]), problem.causal, problem.feature_map
    dq, dk, dv = into or (_result_like(q, kw), _result_like(k, kw), _result_like(v, vw))

    # g' = [do/z, −(do·o)/z]; where z was clamped it no longer moves, and that column is 0
    scale, column = None, None
    if problem.normalize:
        scale, column = torch.empty_like(z), torch.empty_like(z)
        rows = _RowGradients(_operand(do), _operand(o), z.data_ptr(), scale.data_ptr(), column.data_ptr())
        rows.batch, rows.threads, rows.eps = z.shape[0], _threads(), problem.eps
        _call("cosformer_row_gradients", dtype, rows)
    elif dnorm is not None or state is not None:
        column = do.new_zeros(do.shape[:3], dtype=dtype)
    ones = column is not None
    wide = vw + ones
    first_state, first_norm = state_gradients.begin(dstate, dnorm, sequences, problem)
    last = q.new_empty(n, heads, 2, wide, kw, dtype=dtype) if state is not None else None

    run = functools.partial(_walk, problem=problem, sequences=sequences, heads=heads, dtype=dtype)
    against = functools.partial(run, targets_are_keys=True, backward_in_time=causal)
    run(
        _operand(do, scale=scale, column=column),
        _operand(v, mask=key_mask, ones=ones),
        _operand(k, map=phi, mask=key_mask),
        _operand(dq),
        x=_operand(q, map=phi),
        state_in=state_gradients.transposed(state, norm, ones),
    )
    against(
        _operand(v, mask=key_mask, ones=ones),
        _operand(do, scale=scale, column=column),
        _operand(q, map=phi),
        _operand(dk),
        x=_operand(k, map=phi, mask=key_mask),
        state_in=state_gradients.transposed(first_state, first_norm, ones),
        state_out=last,
    )
    against(
        _operand(k, map=phi, mask=key_mask),
        _operand(q, map=phi),
        _operand(do, scale=scale),
        _operand(dv),
        x=_operand(v, mask=key_mask),
        state_in=first_state,
    )
    if last is None:
        return Gradients(dq, dk, dv, None, None)
    ahead = by_sequence(s - t for t, s in zip(sequences.q_lengths, sequences.k_lengths, strict=True))
    return Gradients(dq, dk, dv, *state_gradients.end(last, ahead, sequences, problem))


def step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, norm: Tensor, key_mask: Tensor | None, problem: Problem
) -> Tensor:
    """One token, [B, H, 1, ...]; `state` and `norm` are updated in place."""
    o = empty_like_rows(q, v.shape[3])
    s = _step_plan(q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), o.stride(), q.dtype, problem)
    s = _Step.from_buffer_copy(s)
    s.q.data, s.k.data, s.v.data, s.o.data = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
    s.state, s.norm, s.threads = state.data_ptr(), norm.data_ptr(), _threads()
    if key_mask is not None:
        s.k.mask = s.v.mask = key_mask.data_ptr()
        s.k.mask_strides[:] = s.v.mask_strides[:] = key_mask.stride()
    _call("cosformer_step", state.dtype, s)
    return o


@functools.lru_cache(maxsize=64)
def _step_plan(q, k, v, q_stride, k_stride, v_stride, o_stride, dtype: torch.dtype, problem: Problem) -> _Step:
    """All of a step's description but the addresses: a model asks for the same one at every token."""

    def operand(shape, stride, map: str = "identity") -> _Operand:
        o = _Operand(width=shape[3], heads=shape[1], length=1, dtype=_DTYPES[dtype], map=_MAPS[map])
        o.strides[:] = stride
        return o

    phi = problem.feature_map
    s = _Step(operand(q, q_stride, phi), operand(k, k_stride, phi), operand(v, v_stride), operand(v, o_stride))
    s.batch, s.heads, s.group = q[0], k[1], q[1] // k[1]
    s.theta, s.eps, s.normalize = problem.theta, problem.eps, problem.normalize
    return s


def _result_like(x: Tensor, width: int) -> Tensor:
    result = empty_like_rows(x, width)
    if result.nbytes >= 8 << 20:
        load_library().handle.cosformer_large_pages(c_void_p(result.data_ptr()), c_int64(result.nbytes))
    return result


def _call(name: str, dtype: torch.dtype, arguments: ctypes.Structure) -> None:
    if _function(name, dtype)(ctypes.byref(arguments)):
        raise MemoryError(f"{name}: no memory for the kernel's scratch, which grows with K·V; use narrower heads")


@functools.cache
def _function(name: str, dtype: torch.dtype):
    """The kernel's function for sums of `dtype`."""
    return getattr(load_library().handle, f"{name}_f64" if dtype == torch.float64 else f"{name}_f32")


def _threads() -> int:
    return torch.get_num_threads() if load_library().threaded else 1
