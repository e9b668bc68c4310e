"""Calls the Hopper kernels: what one call needs, how it is cut across the chip, and its states.

States are kept as sums that count positions from the first source of the call, Σ e^{iθs} φ(k) ⊗ v: adding two needs no
turn, so a cut costs one sum per stretch and a plain scan. Turning from and to the caller's state (seen from its last
token) happens here, once.
"""

import functools
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cosformer.ops.features import conjugate, empty_like_rows, turn
from cosformer.ops.packed import Sequences
from cosformer.ops.problem import Gradients, Problem, Results
from cosformer.ops.triton import hopper_kernels as kernels
from cosformer.ops.triton.kernels import scan_kernel

CHUNK = kernels.C.value
WIDEST = 64
SHORTEST_STRETCH = 256
PROGRAMS_PER_PROCESSOR = 2


@functools.cache
def _properties(device: torch.device) -> tuple[bool, int]:
    """Whether it is a Hopper chip, and its multiprocessors."""
    found = torch.cuda.get_device_properties(device)
    return found.major == 9, found.multi_processor_count


def takes(*inputs: Tensor) -> bool:
    """bf16 on Hopper, heads of 8, 16, … 64, rows the copy engine can reach: 16-byte aligned, side by side."""
    return all(
        x.is_cuda and x.dtype == torch.bfloat16 and x.shape[3] <= WIDEST and x.shape[3] % 8 == 0
        and x.stride(3) == 1 and x.data_ptr() % 16 == 0 and x.numel() > 0
        and all(n == 1 or (s > 0 and s % 8 == 0) for n, s in zip(x.shape[:3], x.stride()[:3], strict=True))
        for x in inputs
    ) and _properties(inputs[0].device)[0]  # fmt: skip


def _rows(x: Tensor) -> TensorDescriptor:
    """What `takes` has checked already is not checked again: that would take longer than the launch."""
    made = object.__new__(TensorDescriptor)
    made.base, made.shape, made.padding = x, list(x.shape), "zero"
    made.strides = [s if n > 1 else WIDEST for n, s in zip(x.shape, x.stride(), strict=True)]
    made.strides[3] = 1
    made.block_shape, made.layout = [1, 1, CHUNK, WIDEST], kernels.ROWS.value
    return made


def _eighths(x: Tensor) -> tuple[int, ...]:
    """Strides of batch, heads and time, in steps of 16 bytes."""
    return tuple(s // 8 for s in x.stride()[:3])


class Unusable(RuntimeError):
    """This Triton does not compile these kernels: Gluon is young and changes."""


_compiled: dict[tuple, CompiledKernel] = {}


def _launch(kernel: GluonJITFunction, programs: int, *args: object, **flags: object) -> None:
    """Triton's own way to a compiled kernel looks at every argument each time, which takes longer than a short kernel.
    These kernels are compiled for their flags alone, so the flags find them."""
    wide = tuple(type(x) is int and x >= 2**31 for x in args)
    key = (kernel.__name__, torch.cuda.current_device(), wide, *flags.items())
    found = _compiled.get(key)
    if found is None:
        try:
            _compiled[key] = kernel[(programs,)](*args, **flags)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception as error:
            raise Unusable(f"Triton {triton.__version__} does not compile {kernel.__name__}: {error}") from error
    else:
        found[(programs, 1, 1)](*args, *(flags[name] for name in kernel.arg_names[len(args) :]))


def _absolute(state: Tensor, seen_from: int | Tensor, theta: float) -> Tensor:
    """From (Re, Im) seen from a position to sums of cos and sin; the same for gradients of states."""
    return conjugate(turn(state, -seen_from, theta)).contiguous()


def _seen(sums: Tensor, seen_from: int | Tensor, theta: float) -> Tensor:
    return turn(conjugate(sums), seen_from, theta)


@dataclass(frozen=True, slots=True)
class Cut:
    """The positions of all sequences as slots of at most `stretch`; `table` [slots, 2]: sequence and first position,
    `firsts` [sequences + 1]: first slot of each (both only if packed)."""

    slots: int
    stretch: int
    stretches: int
    table: Tensor | None = None
    firsts: Tensor | None = None

    @property
    def whole(self) -> bool:
        return self.stretches == 1


@functools.lru_cache(maxsize=64)
def _cut(lengths: tuple[int, ...], packed: bool, heads: int, device: torch.device) -> Cut:
    """Only idle processors buy a cut: it costs a second look at the sources."""
    room = PROGRAMS_PER_PROCESSOR * _properties(device)[1]
    if not packed:
        wanted = max(1, min(room // (len(lengths) * heads), lengths[0] // SHORTEST_STRETCH))
        stretch = triton.cdiv(triton.cdiv(lengths[0], wanted), CHUNK) * CHUNK
        stretches = triton.cdiv(lengths[0], stretch)
        return Cut(len(lengths) * stretches, stretch, stretches)
    each = max(SHORTEST_STRETCH, triton.cdiv(sum(lengths) * heads, room))
    stretch = triton.cdiv(each, CHUNK) * CHUNK
    counts = [triton.cdiv(n, stretch) for n in lengths]
    table = [(i, j * stretch) for i, count in enumerate(counts) for j in range(count)]
    firsts = [0, *torch.tensor(counts).cumsum(0).tolist()]
    as_int = functools.partial(torch.tensor, dtype=torch.int32, device=device)
    return Cut(len(table), stretch, max(counts), as_int(table), as_int(firsts))


@functools.lru_cache(maxsize=64)
def _offsets(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)


class Call:
    """What all kernels of one call share."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, sequences: Sequences, problem: Problem
    ) -> None:
        self.q, self.k, self.v, self.problem, self.sequences = q, k, v, problem, sequences
        self.kw, self.vw, self.heads_q, self.heads_k = k.shape[3], v.shape[3], q.shape[1], k.shape[1]
        self.nothing = torch.empty(0, device=q.device)
        self.mask = self.nothing if key_mask is None else key_mask.view(torch.uint8)
        packed, self.sides = sequences.packed, (self.nothing, self.nothing)
        if packed:
            self.sides = (_offsets(sequences.q_lengths, q.device), _offsets(sequences.k_lengths, q.device))
        # causal: positions are those of the keys, and queries and keys are walked together
        self.keys = _cut(sequences.k_lengths, packed, self.heads_q if problem.causal else self.heads_k, q.device)
        self.queries = self.keys if problem.causal else _cut(sequences.q_lengths, packed, self.heads_q, q.device)
        self.flags = {
            "K": self.kw, "V": self.vw, "MAP": problem.feature_map, "PACKED": packed, "CAUSAL": problem.causal,
        }  # fmt: skip
        self.by_hand = packed or (problem.causal and q.shape[2] != k.shape[2])

    def last_key(self) -> Tensor:
        return torch.tensor(self.sequences.k_lengths, dtype=torch.float64) - 1

    def place(self, cut: Cut) -> tuple[Tensor, Tensor, Tensor]:
        return (*self.sides, self.nothing if cut.table is None else cut.table)

    def sizes(self, cut: Cut, heads: int) -> tuple[int | float, ...]:
        mask = (0, 0) if self.mask is self.nothing else self.mask.stride()
        problem = self.problem
        return (
            *mask, heads, self.q.shape[2], self.k.shape[2], cut.stretch, cut.stretches, problem.theta, problem.eps,
        )  # fmt: skip

    def empty_states(self, count: int, heads: int) -> Tensor:
        """[count, heads, 2·K·V sums and 2·K of the column of ones]"""
        return self.nothing.new_empty(count, heads, 2 * self.kw * (self.vw + 1))

    def joined(self, sums: Tensor | None, norm: Tensor | None, seen_from: int | Tensor) -> Tensor | None:
        """A caller's state, or the gradient of one, as kernels take it."""
        if sums is None or norm is None:
            return None
        both = [_absolute(x, seen_from, self.problem.theta).flatten(2) for x in (sums, norm)]
        return torch.cat(both, 2)

    def parted(self, state: Tensor, seen_from: int | Tensor) -> tuple[Tensor, Tensor]:
        edge = 2 * self.kw * self.vw
        sums = state[..., :edge].unflatten(2, (2, self.kw, self.vw))
        norm = state[..., edge:].unflatten(2, (2, self.kw))
        return _seen(sums, seen_from, self.problem.theta), _seen(norm, seen_from, self.problem.theta)

    def scan(self, states: Tensor, cut: Cut, init: Tensor | None, reverse: bool) -> Tensor:
        """In place: what each stretch adds becomes what came before it. The total of each sequence."""
        _, heads, size = states.shape
        total, block = self.empty_states(len(self.sequences), heads), 512
        scan_kernel[(len(self.sequences) * heads, triton.cdiv(size, block))](
            states, total if init is None else init, total, self.nothing if cut.firsts is None else cut.firsts, size,
            heads, cut.stretches, BLOCK=block, PACKED=self.sequences.packed, REVERSE=reverse,
            INIT=init is not None,
        )  # fmt: skip
        return total

    def sum_keys(self, normed: bool) -> Tensor:
        """What each stretch of keys adds."""
        states, cut = self.empty_states(self.keys.slots, self.heads_k), self.keys
        _launch(
            kernels.sum_kernel, cut.slots * self.heads_k, _rows(self.k), _rows(self.v), self.nothing, self.nothing,
            self.mask, states, *self.place(cut),
            *self.sizes(cut, self.heads_k), QUERIES=False, SCALED=False, NORMED=normed,
            MASKED=self.mask is not self.nothing, **self.flags,
        )  # fmt: skip
        return states

    def sum_queries(self, do: Tensor, z: Tensor, extra: Tensor) -> Tensor:
        """… and of queries, for the gradients."""
        states, cut, divided = (
            self.empty_states(self.queries.slots, self.heads_q), self.queries, self.problem.normalize,
        )  # fmt: skip
        if not divided:
            states.zero_()
        _launch(
            kernels.sum_kernel, cut.slots * self.heads_q, _rows(self.q), _rows(do), z, extra, self.nothing, states,
            *self.place(cut),
            *self.sizes(cut, self.heads_q), QUERIES=True, SCALED=divided, NORMED=divided, MASKED=False, **self.flags,
        )  # fmt: skip
        return states

    def states_of_keys(self, init: Tensor | None, normed: bool) -> tuple[Tensor | None, Tensor | None]:
        """What a walk over the queries starts from, and the total if it is known already."""
        if self.problem.causal and self.keys.whole:
            return init, None
        states = self.sum_keys(normed)
        if not self.problem.causal and self.keys.whole and init is None:
            return states, states
        total = self.scan(states, self.keys, init, reverse=False)
        return states if self.problem.causal else total, total


def forward(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None,
    sequences: Sequences, problem: Problem,
) -> Results:  # fmt: skip
    call = Call(q, k, v, key_mask, sequences, problem)
    o = empty_like_rows(q, v.shape[3])
    z = call.nothing.new_empty(q.shape[:3] if problem.normalize else (0,))
    normed = problem.normalize or problem.return_state
    states, total = call.states_of_keys(call.joined(state, norm, -1), normed)
    walk_out = problem.return_state and total is None
    if walk_out:
        total = call.empty_states(len(sequences), call.heads_k)
    cut = call.queries
    _launch(
        kernels.forward_kernel, cut.slots * call.heads_q, *map(_rows, (q, k, v, o)), o, z, call.mask,
        call.nothing if states is None else states,
        total if walk_out else call.nothing, *call.place(cut), *_eighths(o),
        *call.sizes(cut, call.heads_q), GROUP=call.heads_q // call.heads_k, BY_HAND=call.by_hand, NORMED=normed,
        DIVIDED=problem.normalize,
        MASKED=key_mask is not None, STATE_IN=states is not None, STATE_OUT=walk_out, **call.flags,
    )  # fmt: skip
    if not problem.return_state or total is None:
        return Results(o, z, z.new_empty(0), z.new_empty(0))
    return Results(o, z, *call.parted(total, call.last_key()))


def backward(
    do: Tensor, dstate: Tensor | None, dnorm: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor,
    key_mask: Tensor | None, state: Tensor | None, norm: Tensor | None, sequences: Sequences, problem: Problem,
) -> Gradients:  # fmt: skip
    """Query heads that share a key head each give their own dk and dv, added up at the end."""
    call = Call(q, k, v, key_mask, sequences, problem)
    divided, causal, heads, group = problem.normalize, problem.causal, call.heads_q, call.heads_q // call.heads_k
    flags = {**call.flags, "GROUP": group, "MASKED": key_mask is not None}
    dq, extra = empty_like_rows(q, call.kw), torch.empty_like(z)
    states, _ = call.states_of_keys(call.joined(state, norm, -1), divided)
    cut = call.queries
    _launch(
        kernels.backward_q_kernel, cut.slots * heads, *map(_rows, (q, k, v, o, do, dq)), dq, z,
        extra, call.mask, call.nothing if states is None else states,
        *call.place(cut), *_eighths(dq), *call.sizes(cut, heads), BY_HAND=call.by_hand, NORMED=divided,
        STATE_IN=states is not None, **flags,
    )  # fmt: skip
    del states
    init, total = None if dstate is None else call.joined(dstate, dnorm, call.last_key()), None
    if init is not None and group > 1:  # counted once
        init = torch.stack([init, *[torch.zeros_like(init)] * (group - 1)], 2).flatten(1, 2)
    if causal and call.queries.whole:
        states = init
    else:
        states = call.sum_queries(do, z, extra)
        total = call.scan(states, call.queries, init, reverse=True)
        states = states if causal else total
    walk_out = state is not None and total is None
    normed = divided or dnorm is not None
    if walk_out:
        total = call.empty_states(len(sequences), heads)
        if not normed:  # the column of ones has no gradient, and no kernel writes one
            total.zero_()
    dk, dv = empty_like_rows(k, call.kw, heads), empty_like_rows(v, call.vw, heads)
    cut = call.keys
    _launch(
        kernels.backward_kv_kernel, cut.slots * heads, *map(_rows, (q, k, v, do, dk, dv)), dk, dv,
        z, extra, call.mask, call.nothing if states is None else states,
        total if walk_out else call.nothing, *call.place(cut), *_eighths(dk)[1:], *_eighths(dv)[1:],
        *call.sizes(cut, heads), DIVIDED=divided, NORMED=normed, STATE_IN=states is not None,
        STATE_OUT=walk_out, **flags,
    )  # fmt: skip
    if group > 1:
        dk, dv = (x.unflatten(1, (-1, group)).sum(2, dtype=torch.float32).to(x.dtype) for x in (dk, dv))
    if state is None or total is None:
        return Gradients(dq, dk, dv, None, None)
    return Gradients(dq, dk, dv, *call.parted(total.unflatten(1, (-1, group)).sum(2), -1))
