"""The walk on any GPU, and interpreted on a CPU: forward and gradients as sums over time; long sequences cut across the
chip."""

import functools
import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from cosformer.ops import state_gradients
from cosformer.ops.features import clamp_norm, clock, empty_like_rows, phases, turn
from cosformer.ops.packed import Sequences
from cosformer.ops.problem import Gradients, Into, Problem, Results
from cosformer.ops.triton.kernels import row_gradients_kernel, walk_kernel

CHUNK, FRAME = 64, 1024
SHORTEST_STRETCH = 1024
# The inner width, which a state sums over, is cut into parts no wider than this: registers and shared memory end there.
WIDEST_PART = {torch.bfloat16: 128, torch.float16: 128, torch.float32: 64}


@dataclass(frozen=True, slots=True)
class Operand:
    x: Tensor
    map: str = "identity"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kernel is compiled for: chosen by width alone, so that a new length compiles nothing."""

    inner: int
    outer: int
    warps: int
    stages: int


@functools.cache
def choose_shape(inner: int, outer: int, dtype: torch.dtype) -> Shape:
    """Tiles that keep the 2·BI·BO sums of the state within the registers of one program."""
    sums = 4096 if dtype == torch.float32 else 8192
    b_inner = max(16, triton.next_power_of_2(inner))
    b_outer = max(16, min(triton.next_power_of_2(outer), sums // b_inner))
    return Shape(b_inner, b_outer, warps=4 if b_inner * b_outer <= 4096 else 8, stages=2)


@functools.lru_cache(maxsize=32)
def _clock(theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos θf and sin θf over a frame, reckoned in float64. Waits until they are there: other streams may ask next."""
    cos, sin = phases(0, FRAME + CHUNK, theta, torch.empty(0))
    return cos.to(device), sin.to(device)


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _dot(dtype: torch.dtype) -> tuple[tl.dtype, str]:
    """Operands of the products. fp16 would overflow in the scores, so it runs in tf32, which has as many digits; fp32
    runs in three tf32 products, which keep nearly all of its digits (full fp32 would take minutes to compile)."""
    if dtype == torch.bfloat16:
        return tl.bfloat16, "ieee"
    return tl.float32, "tf32" if dtype == torch.float16 else "tf32x3"


@dataclass(frozen=True, slots=True)
class Walk:
    """One sum over time: the operands, and all that goes with them. `run` fills `out`."""

    a: Operand
    b: Operand
    c: Operand
    out: Tensor
    problem: Problem
    lengths_a: tuple[int, ...]
    lengths_b: tuple[int, ...]
    heads: int
    """Of keys and values."""
    cu_a: Tensor | None = None
    cu_b: Tensor | None = None
    x: Operand | None = None
    mask: Tensor | None = None
    masked: str = ""
    scaled: str = ""
    scale: Tensor | None = None
    column: Tensor | None = None
    normed: bool = False
    z: Tensor | None = None
    reverse: bool = False
    state_in: Tensor | None = None
    norm_in: Tensor | None = None
    want_state: bool = False
    divided: bool = True
    """By z, if there is one."""
    added: bool = False
    """To what `out` and `z` hold already."""

    def run(self) -> tuple[Tensor | None, Tensor | None]:
        """Walks once for each part of the inner width, over which the sum is linear.

        Returns the last state [N, Hkv, 2, I(+1), O] and norm [N, Hkv, 2, I], seen from the last position walked (of
        a causal walk with more targets than sources, the last target)."""
        width, widest = self.a.x.shape[3], WIDEST_PART[self.a.x.dtype]
        if width > widest:
            return self._in_parts([slice(i, min(i + widest, width)) for i in range(0, width, widest)])
        return self._causal() if self.problem.causal else self._full()

    def _in_parts(self, parts: list[slice]) -> tuple[Tensor | None, Tensor | None]:
        out, extra = torch.empty_like(self.out, dtype=torch.float32), self.column is not None
        states, norms = [], []
        for part in parts:
            first = part.start == 0
            state = None if self.state_in is None else self.state_in[..., part, :]
            if extra and first and self.state_in is not None:
                state = torch.cat([self.state_in[..., part, :], self.state_in[..., -1:, :]], -2)
            state, norm = replace(
                self, a=Operand(self.a.x[..., part], self.a.map), b=Operand(self.b.x[..., part], self.b.map), out=out,
                x=self.x or Operand(self.out), column=self.column if first else None, state_in=state,
                norm_in=None if self.norm_in is None else self.norm_in[..., part], divided=False, added=not first,
            ).run()  # fmt: skip
            states.append(state)
            norms.append(norm)
        if self.z is not None and self.divided:
            out = out / clamp_norm(self.z, self.problem.eps)[..., None]
        self.out.copy_(out)
        if states[0] is None or not self.want_state:
            return None, None
        if extra:  # its row comes last
            states = [states[0][..., :-1, :], *states[1:], states[0][..., -1:, :]]
        return torch.cat(states, -2), None if norms[0] is None else torch.cat(norms, -1)

    def _causal(self) -> tuple[Tensor | None, Tensor | None]:
        theta, sources = self.problem.theta, self.b.x.shape[2]
        total = max(self.a.x.shape[2], sources)
        stretches, each = self._cut(total, self.a.x.shape[1])
        if stretches == 1:
            state, norm = self._launch(True, True, 1, each, _one(self.state_in), _one(self.norm_in), self.want_state)
            return _only(state), _only(norm)
        added, added_norm = self._launch(True, False, stretches, each, None, None, True)
        states, last = _running(added, self.state_in, each, sources, total, theta)
        norms, last_norm = _running(added_norm, self.norm_in, each, sources, total, theta)
        self._launch(True, True, stretches, each, states, norms, False)
        return last, last_norm

    def _full(self) -> tuple[Tensor | None, Tensor | None]:
        theta, sources = self.problem.theta, self.b.x.shape[2]
        stretches, each = self._cut(sources, self.heads)
        if stretches == 1:
            added, added_norm = self._launch(True, False, 1, each, _one(self.state_in), _one(self.norm_in), True)
            last, last_norm = _only(added), _only(added_norm)
        else:
            added, added_norm = self._launch(True, False, stretches, each, None, None, True)
            _, last = _running(added, self.state_in, each, sources, sources, theta)
            _, last_norm = _running(added_norm, self.norm_in, each, sources, sources, theta)
        stretches, each = self._cut(self.a.x.shape[2], self.a.x.shape[1])
        self._launch(False, True, stretches, each, _one(last), _one(last_norm), False)
        return last, last_norm

    def _cut(self, length: int, heads: int) -> tuple[int, int]:
        """How many stretches, and how long. Only idle processors buy a cut: it costs a second look at the sources."""
        programs = len(self.lengths_a) * heads * triton.cdiv(self.c.x.shape[3], self._shape.outer)
        wanted = min(2 * _processors(self.out.device) // programs, length // SHORTEST_STRETCH)
        wanted = 1 if self.cu_a is not None else max(1, wanted)
        each = triton.cdiv(triton.cdiv(length, wanted), CHUNK) * CHUNK
        return triton.cdiv(length, each), each

    @property
    def _shape(self) -> Shape:
        return choose_shape(self.a.x.shape[3], self.c.x.shape[3], self.a.x.dtype)

    def _launch(
        self, sources: bool, targets: bool, stretches: int, each: int, states: Tensor | None, norms: Tensor | None,
        keep: bool,
    ) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        """One kernel over all stretches. `states` [N, Hkv, stretches, 2, I(+1), O], seen from before each stretch; for
        targets alone [N, Hkv, 1, 2, I(+1), O], seen from the last source."""
        a, b, c, out, x, shape, theta = self.a, self.b, self.c, self.out, self.x, self._shape, self.problem.theta
        inner, outer, extra = a.x.shape[3], c.x.shape[3], int(self.column is not None)
        n, heads = len(self.lengths_a), a.x.shape[1] if targets else self.heads
        none = torch.empty(0, device=out.device, dtype=torch.float32)
        new_state = none.new_empty(n, self.heads, stretches, 2, inner + extra, outer) if keep else None
        new_norm = none.new_empty(n, self.heads, stretches, 2, inner) if keep and self.normed else None
        if states is not None and self.normed and norms is None:
            norms = none.new_zeros(*states.shape[:3], 2, inner)
        x = x or Operand(out)
        mask = None if self.mask is None else self.mask.view(torch.uint8)
        dot, precision = _dot(a.x.dtype)
        tensors = (self.scale, self.column, self.z, mask, states, norms, new_state, new_norm)
        walk_kernel[(triton.cdiv(outer, shape.outer), n * heads * stretches)](
            a.x, b.x, c.x, out, x.x, *(none if t is None else t for t in tensors), *_clock(theta, out.device),
            *(none if t is None else t for t in (self.cu_a, self.cu_b)), *a.x.stride(), *b.x.stride(), *c.x.stride(),
            *out.stride(), *x.x.stride(), *((0, 0) if mask is None else mask.stride()), heads, a.x.shape[2],
            b.x.shape[2], each, stretches, theta, math.cos(theta * FRAME), math.sin(theta * FRAME), self.problem.eps,
            I=inner, O=outer, BI=shape.inner, BO=shape.outer, CHUNK=CHUNK, FRAME=FRAME, GROUP_A=heads // self.heads,
            GROUP_B=b.x.shape[1] // self.heads, MAP_A=a.map, MAP_B=b.map, MAP_C=c.map, MAP_X=x.map, SCALED=self.scaled,
            EXTRA=extra, NORMED=self.normed, Z=self.z is not None, DIVIDED=self.z is not None and self.divided,
            ADDED=self.added, MASKED=self.masked, PACKED=self.cu_a is not None, CAUSAL=sources and targets,
            REVERSE=self.reverse, SOURCES=sources, TARGETS=targets, STATE_IN=states is not None, STATE_OUT=keep,
            DOT=dot, PRECISION=precision, num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip
        return new_state, new_norm


def _one(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.unsqueeze(2).contiguous()


def _only(x: Tensor | None) -> Tensor | None:
    return None if x is None else x[:, :, 0]


def _turn(x: Tensor, steps: Tensor, theta: float) -> Tensor:
    """e^{iθ·steps} · x for x [N, H, G or 1, 2, ...] and steps [N or 1, G]: [N, H, G, 2, ...]."""
    shape = (steps.shape[0], 1, steps.shape[1]) + (1,) * (x.dim() - 4)
    cos, sin = (y.view(shape) for y in clock(steps, theta, x))
    re, im = x.unbind(3)
    return torch.stack([cos * re - sin * im, sin * re + cos * im], 3)


def _running(
    added: Tensor | None, first: Tensor | None, each: int, sources: int, total: int, theta: float
) -> tuple[Tensor | None, Tensor | None]:
    """From what each stretch adds (seen from its last source) to the state before each stretch and after them all."""
    if added is None:
        return None, None
    count = added.shape[2]
    ends = torch.tensor([[min((g + 1) * each, sources) - 1 for g in range(count)]])
    begin = added.new_zeros(added[:, :, :1].shape) if first is None else turn(first, 1, theta)[:, :, None]
    sums = torch.cat([begin, _turn(added, -ends, theta)], 2).cumsum(2)  # seen from position 0
    seen_from = torch.tensor([[*(g * each - 1 for g in range(count)), total - 1]])
    states = _turn(sums, seen_from, theta)
    return states[:, :, :-1].contiguous(), states[:, :, -1].contiguous()


def _offsets(sequences: Sequences, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """cu_seqlens of queries and keys on the device, if packed."""
    if not sequences.packed:
        return None, None
    q = torch.tensor([*sequences.q_starts, sequences.q_starts[-1] + sequences.q_lengths[-1]], dtype=torch.int32)
    k = torch.tensor([*sequences.k_starts, sequences.k_starts[-1] + sequences.k_lengths[-1]], dtype=torch.int32)
    return q.to(device, non_blocking=True), k.to(device, non_blocking=True)


def forward(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None,
    sequences: Sequences, problem: Problem,
) -> Results:  # fmt: skip
    cu_q, cu_k = _offsets(sequences, q.device)
    o = empty_like_rows(q, v.shape[3])
    z = q.new_empty(q.shape[:3] if problem.normalize else (0,), dtype=torch.float32)
    last, last_norm = Walk(
        Operand(q, problem.feature_map), Operand(k, problem.feature_map), Operand(v), o, problem, sequences.q_lengths,
        sequences.k_lengths, k.shape[1], cu_q, cu_k, mask=key_mask, masked="" if key_mask is None else "b",
        normed=problem.normalize or problem.return_state, z=z if problem.normalize else None, state_in=state,
        norm_in=norm, want_state=problem.return_state,
    ).run()  # fmt: skip
    if not problem.return_state or last is None or last_norm is None:
        return Results(o, z, z.new_empty(0), z.new_empty(0))
    return Results(o, z, last.contiguous(), last_norm.contiguous())


def rows_of_gradients(do: Tensor, o: Tensor, z: Tensor, scale: Tensor, column: Tensor, eps: float) -> None:
    """scale = 1/z and column = −(do·o)/z, for each row."""
    block, width = 64, do.shape[3]
    row_gradients_kernel[(triton.cdiv(do.shape[2], block), do.shape[0] * do.shape[1])](
        do, o, z, scale, column, *do.stride(), *o.stride(), do.shape[1], do.shape[2], eps, V=width,
        BV=triton.next_power_of_2(width), BT=block,
    )  # fmt: skip


def backward(
    do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor,
    key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None, sequences: Sequences, problem: Problem,
    into: Into = None,
) -> Gradients:  # fmt: skip
    """Three walks: dq forward in time, dk and dv against it (any order where attention is not causal)."""
    heads, causal, phi, vw = k.shape[1], problem.causal, problem.feature_map, v.shape[3]
    dq, dk, dv = into or (empty_like_rows(q, q.shape[3]), empty_like_rows(k, k.shape[3]), empty_like_rows(v, vw))
    cu_q, cu_k = _offsets(sequences, q.device)
    scale, column = None, None
    if problem.normalize:
        scale, column = torch.empty_like(z), torch.empty_like(z)
        rows_of_gradients(do, o, z, scale, column, problem.eps)
    elif dnorm is not None or state is not None:
        column = do.new_zeros(do.shape[:3], dtype=torch.float32)
    ones = column is not None
    first_state, first_norm = state_gradients.begin(dstate, dnorm, sequences, problem)
    masked = "" if key_mask is None else "a"
    keys, queries = sequences.k_lengths, sequences.q_lengths
    Walk(
        Operand(do), Operand(v), Operand(k, phi), dq, problem, queries, keys, heads, cu_q, cu_k, x=Operand(q, phi),
        mask=key_mask, masked="" if key_mask is None else "b", scaled="" if scale is None else "a", scale=scale,
        column=column, state_in=state_gradients.transposed(state, norm, ones),
    ).run()  # fmt: skip
    last, _ = Walk(
        Operand(v), Operand(do), Operand(q, phi), dk, problem, keys, queries, heads, cu_k, cu_q, x=Operand(k, phi),
        mask=key_mask, masked=masked, scaled="" if scale is None else "b", scale=scale, column=column, reverse=causal,
        state_in=state_gradients.transposed(first_state, first_norm, ones), want_state=state is not None,
    ).run()  # fmt: skip
    Walk(
        Operand(k, phi), Operand(q, phi), Operand(do), dv, problem, keys, queries, heads, cu_k, cu_q, mask=key_mask,
        masked=masked, scaled="" if scale is None else "c", scale=scale, reverse=causal, state_in=first_state,
    ).run()  # fmt: skip
    if state is None or last is None:
        return Gradients(dq, dk, dv, None, None)
    return Gradients(dq, dk, dv, *state_gradients.end(last, 0, sequences, problem))
