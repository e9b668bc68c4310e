"""The linear form in plain torch operations: runs on any device, differentiable any number of times.

One sum serves forward and backward (`walk`):

    out[t] = Σ_s cos(θ(t − s)) (a[t]·b[s]) c[s]           causal: s <= t; else every s

forward: a = φ(q), b = φ(k), c = [v, 1]. With g' = [do/z, −(do·o)/z] and v' = [v, 1] the gradients are
dφ(q): a = g', b = v', c = φ(k);   against time  dφ(k): a = v', b = g', c = φ(q);   dv: a = φ(k), b = φ(q), c = g.

Time is taken a frame of FRAME tokens at a time, so memory beyond the result does not grow with the length. Inside a
frame all chunks run at once: Φ(x) = [x cos θf, x sin θf] with f counted from the frame's start carries the past, and a
tile of cosines the chunk itself. Between frames the state is turned, so no angle grows.
"""

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.ops.features import (
    FEATURE_MAPS,
    clamp_norm,
    clock,
    conjugate,
    feature_map_gradient,
    phases,
    sum_dtype,
    turn,
)
from cosformer.ops.packed import Sequences
from cosformer.ops.problem import Gradients, Into, Problem, Results

CHUNK, FRAME = 64, 1024

Rows = Callable[[int, int], Tensor]
"""Rows [N, Hkv, G, j − i, D] of an operand for positions i to j, made when they are needed."""


def walk(
    a: Rows, b: Rows, c: Rows, *, targets: int, sources: int, theta: float, causal: bool, state: Tensor
) -> tuple[Tensor, Tensor]:
    """out [N, Hkv, G, targets, O] and the last state, from `state` [N, Hkv, 2, I, O] seen from position −1.

    Causal, with more sources than targets: the targets are the last positions. With fewer: the sources are the first.
    """
    outs: list[Tensor] = []
    lead = max(sources - targets, 0) if causal else sources  # sources before any target
    for i in range(0, lead, FRAME):
        j = min(i + FRAME, lead)
        state = turn(state, j - i, theta) + _seen_from_end(b(i, j), c(i, j), theta)
    last = state
    if causal:
        both = min(targets, sources)
        for i in range(0, both, FRAME):
            j = min(i + FRAME, both)
            out, state = _frame(a(i, j), b(lead + i, lead + j), c(lead + i, lead + j), theta, state)
            outs.append(out)
        last = state
        for i in range(both, targets, FRAME):
            outs.append(_read(a(i, min(i + FRAME, targets)), turn(last, i - both + 1, theta), theta))
    else:
        for i in range(0, targets, FRAME):  # position i stands i − (sources − 1) after the last source
            outs.append(_read(a(i, min(i + FRAME, targets)), turn(last, i - sources + 1, theta), theta))
    return torch.cat(outs, 3), last


def _seen_from_end(b: Tensor, c: Tensor, theta: float) -> Tensor:
    """Σ_s e^{iθ(last − s)} b[s] ⊗ c[s], summed over the group: [N, Hkv, 2, I, O]."""
    n = b.shape[3]
    cos, sin = phases(0, n, theta, b)
    both = torch.stack([b * cos.flip(0)[:, None], b * sin.flip(0)[:, None]], 2)  # [N, Hkv, 2, G, n, I]
    return both.flatten(3, 4).mT @ c.flatten(2, 3)[:, :, None]


def _read(a: Tensor, state: Tensor, theta: float) -> Tensor:
    """a[f] · Re(e^{iθf} state)."""
    cos, sin = phases(0, a.shape[3], theta, a)
    re, im = state[:, :, None, 0], state[:, :, None, 1]  # [N, Hkv, 1, I, O]
    return (a * cos[:, None]) @ re - (a * sin[:, None]) @ im


def _frame(a: Tensor, b: Tensor, c: Tensor, theta: float, state: Tensor) -> tuple[Tensor, Tensor]:
    """A causal stretch of at most FRAME tokens, every chunk of it at once."""
    n = a.shape[3]
    fill = -n % CHUNK
    a, b, c = (F.pad(x, (0, 0, 0, fill)).unflatten(3, (-1, CHUNK)) for x in (a, b, c))  # [N, Hkv, G, n/C, C, *]
    cos, sin = (x.view(-1, CHUNK, 1) for x in phases(0, n + fill, theta, a))
    features = torch.cat([b * cos, b * sin], -1)  # [N, Hkv, G, n/C, C, 2I]
    added = (features.mT @ c).sum(2)  # [N, Hkv, n/C, 2I, O]
    re, im = turn(state, 1, theta).unbind(2)
    start = torch.cat([re, -im], 2)[:, :, None]  # the state in the clock of this frame, [N, Hkv, 1, 2I, O]
    before = torch.cat([start, start + added.cumsum(2)], 2)  # before each chunk, and after the last
    past = torch.cat([a * cos, a * sin], -1) @ before[:, :, None, :-1]  # [N, Hkv, G, n/C, C, O]
    out = past + _inside(a, b, c, theta)
    h_cos, h_sin = before[:, :, -1].unflatten(2, (2, -1)).unbind(2)
    end = turn(torch.stack([h_cos, -h_sin], 2), n - 1, theta)
    return out.flatten(3, 4)[:, :, :, :n], end


def _inside(a: Tensor, b: Tensor, c: Tensor, theta: float) -> Tensor:
    """The causal sum inside each chunk. A source that is not finite spoils its own row and later ones, no earlier."""
    steps = torch.arange(CHUNK)
    tile = clock(steps[:, None] - steps, theta, a)[0].tril()  # [C, C]
    whole = torch.isfinite(b).all(-1, keepdim=True) & torch.isfinite(c).all(-1, keepdim=True)  # [..., C, 1]
    out = (a @ torch.where(whole, b, 0).mT * tile) @ torch.where(whole, c, 0)
    if b.shape[2] > 1:  # several sources for one target
        out = out.sum(2, keepdim=True)
    spoilt = (~whole).any(2, keepdim=True).cumsum(-2) > 0
    return torch.where(spoilt, torch.nan, out)


def _operand(x: Tensor, heads: int, dtype: torch.dtype, phi: str = "identity", mask: Tensor | None = None) -> Tensor:
    """φ(x), masked rows zero, with its heads in groups: [N, Hkv, G, T, D]."""
    x = FEATURE_MAPS[phi](x.to(dtype))
    if mask is not None:
        x = torch.where(mask[:, None, :, None], x, 0)
    return x.unflatten(1, (heads, -1))


def _with_column(x: Tensor, column: Tensor) -> Tensor:
    return torch.cat([x, column[..., None]], -1)


def _ones(x: Tensor, mask: Tensor | None) -> Tensor:
    ones = x.new_ones(x.shape[:-1])
    return ones if mask is None else ones * mask[:, None, None, :]


def forward(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None,
    sequences: Sequences, problem: Problem,
) -> Results:  # fmt: skip
    if sequences.packed:
        parts = [
            _forward(q[:, :, i], k[:, :, j], v[:, :, j], _columns(key_mask, j), _row(state, n), _row(norm, n), problem)
            for n, (i, j) in enumerate(sequences.slices())
        ]
        o, z = torch.cat([p.o for p in parts], 2), torch.cat([p.z for p in parts], -1)
        return Results(o, z, torch.cat([p.state for p in parts]), torch.cat([p.norm for p in parts]))
    return _forward(q, k, v, key_mask, state, norm, problem)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    state: Tensor | None,
    norm: Tensor | None,
    problem: Problem,
) -> Results:
    heads, dtype, phi = k.shape[1], sum_dtype(q.dtype), problem.feature_map

    def mask(i: int, j: int) -> Tensor | None:
        return None if key_mask is None else key_mask[:, i:j]

    def values(i: int, j: int) -> Tensor:
        rows = _operand(v[:, :, i:j], heads, dtype, mask=mask(i, j))
        return _with_column(rows, _ones(rows, mask(i, j)))

    sums, last = walk(
        lambda i, j: _operand(q[:, :, i:j], heads, dtype, phi),
        lambda i, j: _operand(k[:, :, i:j], heads, dtype, phi, mask(i, j)),
        values, targets=q.shape[2], sources=k.shape[2], theta=problem.theta, causal=problem.causal,
        state=_join(state, norm, (k.shape[0], heads, 2, k.shape[3], v.shape[3]), q, dtype),
    )  # fmt: skip
    sums = sums.flatten(1, 2)  # [B, H, T, V+1]
    z = sums[..., -1]
    o = sums[..., :-1]
    if problem.normalize:
        o = o / clamp_norm(z, problem.eps)[..., None]
    return Results(
        o.to(q.dtype), z.contiguous() if problem.normalize else z.new_empty(0),
        last[..., :-1].contiguous() if problem.return_state else z.new_empty(0),
        last[..., -1].contiguous() if problem.return_state else z.new_empty(0),
    )  # fmt: skip


def backward(
    do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor,
    key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None, sequences: Sequences, problem: Problem,
    into: Into = None,
) -> Gradients:  # fmt: skip
    if sequences.packed:
        parts = [
            _backward(
                do[:, :, i], _row(dstate, n), _row(dnorm, n), q[:, :, i], k[:, :, j], v[:, :, j], o[:, :, i],
                z[:, :, i] if problem.normalize else z, _columns(key_mask, j), _row(state, n), _row(norm, n), problem,
            )
            for n, (i, j) in enumerate(sequences.slices())
        ]  # fmt: skip
        dq, dk, dv = (torch.cat(list(x), 2) for x in zip(*((p.q, p.k, p.v) for p in parts), strict=True))
        states, norms = [p.state for p in parts if p.state is not None], [p.norm for p in parts if p.norm is not None]
        return Gradients(dq, dk, dv, torch.cat(states) if states else None, torch.cat(norms) if norms else None)
    return _backward(do, dstate, dnorm, q, k, v, o, z, key_mask, state, norm, problem)


def _backward(
    do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor,
    key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None, problem: Problem,
) -> Gradients:  # fmt: skip
    heads, dtype, phi, theta = k.shape[1], sum_dtype(q.dtype), problem.feature_map, problem.theta
    causal, t, s = problem.causal, q.shape[2], k.shape[2]
    shape = (k.shape[0], heads, 2, k.shape[3], v.shape[3])

    def mask(i: int, j: int) -> Tensor | None:
        return None if key_mask is None else key_mask[:, i:j]

    def grads(i: int, j: int) -> Tensor:  # g' = [do/z, −(do·o)/z]; where z was clamped it no longer moves
        g = do[:, :, i:j].to(dtype)
        column = torch.zeros_like(g[..., 0])
        if problem.normalize:
            clamped = clamp_norm(z[:, :, i:j], problem.eps)
            g = g / clamped[..., None]
            column = torch.where(clamped == z[:, :, i:j], -(g * o[:, :, i:j].to(dtype)).sum(-1), 0)
        return _with_column(g, column).unflatten(1, (heads, -1))

    def values(i: int, j: int) -> Tensor:
        rows = _operand(v[:, :, i:j], heads, dtype, mask=mask(i, j))
        return _with_column(rows, _ones(rows, mask(i, j)))

    def queries(i: int, j: int) -> Tensor:
        return _operand(q[:, :, i:j], heads, dtype, phi)

    def keys(i: int, j: int) -> Tensor:
        return _operand(k[:, :, i:j], heads, dtype, phi, mask(i, j))

    def reversed_(rows: Rows, length: int) -> Rows:
        return lambda i, j: rows(length - j, length - i).flip(3)

    first = _join(dstate, dnorm, shape, q, dtype)
    if causal:
        first = turn(conjugate(first), -1, theta)
        against = (reversed_(queries, t), reversed_(grads, t), reversed_(keys, s), reversed_(values, s))
    else:
        first = turn(first, -s, theta)
        against = (queries, grads, keys, values)
    queries_, grads_, keys_, values_ = against

    run = functools.partial(walk, theta=theta, causal=causal)
    forward_state = _join(state, norm, shape, q, dtype)
    dq, _ = run(grads, values, keys, targets=t, sources=s, state=forward_state.mT)
    dk, last = run(values_, grads_, queries_, targets=s, sources=t, state=first.mT)
    dv, _ = run(keys_, queries_, lambda i, j: grads_(i, j)[..., :-1], targets=s, sources=t, state=first[..., :-1])
    if causal:
        dk, dv = dk.flip(3), dv.flip(3)
    dq, dk, dv = dq.flatten(1, 2), dk.flatten(1, 2), dv.flatten(1, 2)
    dq = dq * feature_map_gradient(phi, q.to(dtype))
    dk = dk * feature_map_gradient(phi, k.to(dtype))
    if key_mask is not None:
        keep = key_mask[:, None, :, None]
        dk, dv = torch.where(keep, dk, 0), torch.where(keep, dv, 0)
    dq, dk, dv = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
    if state is None:
        return Gradients(dq, dk, dv, None, None)
    last = conjugate(turn(last, s - t + 1, theta)) if causal else turn(last, -t, theta)
    return Gradients(dq, dk, dv, last[..., :-1, :].mT.contiguous(), last[..., -1, :].contiguous())


def step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, norm: Tensor, key_mask: Tensor | None, problem: Problem
) -> Tensor:
    """One token, [B, H, 1, ...]; `state` and `norm` are updated in place."""
    heads, dtype, phi = k.shape[1], state.dtype, problem.feature_map
    half, full = math.sin(problem.theta / 2), math.sin(problem.theta)
    keys = _operand(k, heads, dtype, phi, key_mask)[:, :, 0, 0]  # [B, Hkv, K]
    rows = _operand(v, heads, dtype, mask=key_mask)[:, :, 0]  # [B, Hkv, 1, V]
    for sums, added in ((state, keys[..., None] * rows), (norm, keys)):
        # e^{iθ} − 1 instead of e^{iθ}: near 1 a float rounds cos θ, which over 6,400 steps adds up to 2e-4
        re, im = sums.unbind(2)
        change = torch.stack([-(2 * half * half * re + full * im) + added, full * re - 2 * half * half * im], 2)
        sums.add_(change)
    queries = _operand(q, heads, dtype, phi)[:, :, :, 0]  # [B, Hkv, G, K]
    o = queries @ state[:, :, 0]
    if problem.normalize:
        o = o / clamp_norm(queries @ norm[:, :, 0, :, None], problem.eps)
    return o.flatten(1, 2)[:, :, None].to(q.dtype)


def _join(
    state: Tensor | None, norm: Tensor | None, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype
) -> Tensor:
    """[N, Hkv, 2, K, V+1], zeros for what is missing."""
    sums = like.new_zeros(shape, dtype=dtype) if state is None else state
    return _with_column(sums, like.new_zeros(shape[:-1], dtype=dtype) if norm is None else norm)


def _columns(key_mask: Tensor | None, of: slice) -> Tensor | None:
    return None if key_mask is None else key_mask[:, of]


def _row(x: Tensor | None, n: int) -> Tensor | None:
    return None if x is None else x[n : n + 1]
