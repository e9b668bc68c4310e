"""What one call of the Hopper kernels needs: how it is cut across the chip, its states, its launches.

States are kept as sums that count positions from the first source of the call, Σ e^{iθs} φ(k) ⊗ v: adding two needs no
turn, so a cut costs one sum per stretch and a plain scan. Turning from and to the caller's state (seen from its last
token) happens here, once.
"""

import functools
import threading
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cosformer.ops.features import conjugate, turn
from cosformer.ops.packed import Sequences, by_sequence
from cosformer.ops.problem import Problem
from cosformer.ops.triton import hopper_kernels, hopper_parts, hopper_wide_kernels
from cosformer.ops.triton.kernels import scan_kernel

CHUNK = hopper_parts.C.value
NARROW, WIDE = 64, hopper_wide_kernels.W.value
SHORTEST_STRETCH = 256


@functools.cache
def _properties(device: torch.device) -> tuple[bool, int]:
    """Whether it is a Hopper chip, and its multiprocessors."""
    found = torch.cuda.get_device_properties(device)
    return found.major == 9, found.multi_processor_count


def takes(*inputs: Tensor) -> bool:
    """bf16 on Hopper, heads of 8, 16, … 128, rows the copy engine can reach: 16-byte aligned, side by side."""
    return all(
        x.is_cuda and x.dtype == torch.bfloat16 and x.shape[3] <= WIDE and x.shape[3] % 8 == 0
        and x.stride(3) == 1 and x.data_ptr() % 16 == 0 and x.numel() > 0
        and all(n == 1 or (s > 0 and s % 8 == 0) for n, s in zip(x.shape[:3], x.stride()[:3], strict=True))
        for x in inputs
    ) and _properties(inputs[0].device)[0]  # fmt: skip


def rows(x: Tensor, width: int) -> TensorDescriptor:
    """Chunks of x in tiles of `width` columns. What `takes` has checked is not checked again: that would take longer
    than the launch."""
    made = object.__new__(TensorDescriptor)
    made.base, made.shape, made.padding = x, list(x.shape), "zero"
    made.strides = [s if n > 1 else width for n, s in zip(x.shape, x.stride(), strict=True)]
    made.strides[3] = 1
    made.block_shape, made.layout = [1, 1, CHUNK, width], hopper_parts.ROWS.value
    return made


def eighths(x: Tensor) -> tuple[int, ...]:
    """Strides of batch, heads and time, in steps of 16 bytes."""
    return tuple(s // 8 for s in x.stride()[:3])


class _Thread(threading.local):
    """Devices whose context is current in this thread."""

    def __init__(self) -> None:
        self.ready: set[int] = set()


_thread = _Thread()


def ensure_context() -> None:
    """Describing rows to the copy engine needs a context, which CUDA gives a thread with its first call; torch's thread
    for gradients may come here without one."""
    device = torch.cuda.current_device()
    if device not in _thread.ready:
        torch.cuda.mem_get_info(device)
        _thread.ready.add(device)


class Address:
    """Of a tensor that a kernel also gets as rows."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Unusable(RuntimeError):
    """This Triton does not compile these kernels: Gluon is young and changes."""


_compiled: dict[tuple, CompiledKernel] = {}


def launch(kernel: GluonJITFunction, programs: int, warps: int, *args: object, **flags: object) -> None:
    """Triton's own way to a compiled kernel looks at every argument each time, which takes longer than a short kernel.
    These kernels are compiled for their flags alone, so the flags find them."""
    wide = tuple(type(x) is int and x >= 2**31 for x in args)
    key = (kernel.__name__, torch.cuda.current_device(), wide, *flags.items())
    found = _compiled.get(key)
    if found is None:
        try:
            limit = {"maxnreg": hopper_wide_kernels.REGISTERS.get(kernel.__name__)}
            _compiled[key] = kernel[(programs,)](*args, num_warps=warps, **limit, **flags)
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
def _cut(lengths: tuple[int, ...], packed: bool, programs: int, device: torch.device) -> Cut:
    """`programs`: how many heads, times the half processors that one takes. Only idle processors buy a cut: it costs a
    second look at the sources."""
    room = 2 * _properties(device)[1]
    if not packed:
        wanted = max(1, min(room // (len(lengths) * programs), lengths[0] // SHORTEST_STRETCH))
        stretch = triton.cdiv(triton.cdiv(lengths[0], wanted), CHUNK) * CHUNK
        stretches = triton.cdiv(lengths[0], stretch)
        return Cut(len(lengths) * stretches, stretch, stretches)
    each = max(SHORTEST_STRETCH, triton.cdiv(sum(lengths) * programs, room))
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
        ensure_context()
        self.q, self.k, self.v, self.problem, self.sequences = q, k, v, problem, sequences
        self.kw, self.vw, self.heads_q, self.heads_k = k.shape[3], v.shape[3], q.shape[1], k.shape[1]
        self.nothing = torch.empty(0, device=q.device)
        self.mask = self.nothing if key_mask is None else key_mask.view(torch.uint8)
        packed, self.sides = sequences.packed, (self.nothing, self.nothing)
        if packed:
            self.sides = (_offsets(sequences.q_lengths, q.device), _offsets(sequences.k_lengths, q.device))
        self.wide = max(self.kw, self.vw) > NARROW
        self.width, self.warps, halves = (WIDE, 8, 2) if self.wide else (NARROW, 4, 1)
        # causal: positions are those of the keys, and queries and keys are walked together
        self.keys = _cut(
            sequences.k_lengths, packed, halves * (self.heads_q if problem.causal else self.heads_k), q.device
        )  # fmt: skip
        self.queries = self.keys
        if not problem.causal:
            self.queries = _cut(sequences.q_lengths, packed, self.heads_q, q.device)
        self.flags = {
            "K": self.kw, "V": self.vw, "MAP": problem.feature_map, "PACKED": packed, "CAUSAL": problem.causal,
        }  # fmt: skip
        self.by_hand = packed or (problem.causal and q.shape[2] != k.shape[2])

    def run(self, kernel: GluonJITFunction, programs: int, *args: object, **flags: object) -> None:
        """A kernel; tensors of four dimensions go as their rows."""
        described = (
            x.x if isinstance(x, Address) else rows(x, self.width) if isinstance(x, Tensor) and x.dim() == 4 else x
            for x in args
        )
        launch(kernel, programs, self.warps, *described, **flags, **self.flags)

    def last_key(self) -> int | Tensor:
        return by_sequence(n - 1 for n in self.sequences.k_lengths)

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

    @property
    def sum_kernel(self) -> GluonJITFunction:
        return hopper_wide_kernels.wide_sum_kernel if self.wide else hopper_kernels.sum_kernel

    def sum_keys(self, normed: bool) -> Tensor:
        """What each stretch of keys adds."""
        states, cut = self.empty_states(self.keys.slots, self.heads_k), self.keys
        self.run(
            self.sum_kernel, cut.slots * self.heads_k, self.k, self.v, self.nothing, self.nothing, self.mask, states,
            *self.place(cut), *self.sizes(cut, self.heads_k), QUERIES=False, SCALED=False, NORMED=normed,
            MASKED=self.mask is not self.nothing,
        )  # fmt: skip
        return states

    def sum_queries(self, do: Tensor, z: Tensor, extra: Tensor) -> Tensor:
        """… and of queries, for the gradients."""
        states, cut, divided = (
            self.empty_states(self.queries.slots, self.heads_q), self.queries, self.problem.normalize,
        )  # fmt: skip
        if not divided:
            states.zero_()
        self.run(
            self.sum_kernel, cut.slots * self.heads_q, self.q, do, z, extra, self.nothing, states, *self.place(cut),
            *self.sizes(cut, self.heads_q), QUERIES=True, SCALED=divided, NORMED=divided, MASKED=False,
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
