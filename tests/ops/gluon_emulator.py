"""Runs the Gluon kernels of cosformer/ops/triton/hopper_*kernels.py on a CPU, one program after another.

Gluon has no interpreter, but its kernels are Python: here their source is run with stand-ins for the language, torch
tensors for tiles. Layouts and threads do not exist; what does is the order of things that run by themselves. A copy or
a product takes place either at once or as late as the kernel allows (`late`): at its barrier or its wait. A wait that
comes too early, a result used before it is there, or a buffer filled while it is still read shows as an error or as a
wrong number in one of the two. Shared memory begins as NaN, and storing before the first row of a tensor is an error,
as on the chip. Where a kernel gives its warps different work, each side is a thread, one of which runs at a time until
it has to wait for another; `late`, it also steps back wherever it could wait.
"""

import ast
import threading
import types
from collections import deque
from pathlib import Path

import torch
from torch import Tensor

import cosformer.ops.triton

NAN = float("nan")


class Pointer:
    def __init__(self, flat: Tensor, at: Tensor | int) -> None:
        self.flat, self.at = flat, at

    def __add__(self, more: Tensor | int) -> "Pointer":
        return Pointer(self.flat, self.at + more)

    @staticmethod
    def to(x: Tensor) -> "Pointer":
        size = x.untyped_storage().nbytes() // x.element_size()
        return Pointer(torch.as_strided(x, (size,), (1,), 0), x.storage_offset())


class Shared:
    def __init__(self, tile: Tensor) -> None:
        self.tile = tile

    @property
    def shape(self) -> torch.Size:
        return self.tile.shape

    def index(self, i: int) -> "Shared":
        return Shared(self.tile[int(i)])

    def reshape(self, shape: list[int]) -> "Shared":
        return Shared(self.tile.view(shape))

    def slice(self, start: int, length: int, dim: int = 0) -> "Shared":
        return Shared(self.tile.narrow(dim, start, length))

    def permute(self, order: tuple[int, ...]) -> "Shared":
        return Shared(self.tile.permute(order))

    def load(self, layout: object) -> Tensor:
        return self.tile.clone()

    def store(self, value: Tensor) -> None:
        assert value.shape == self.tile.shape
        assert value.dtype == self.tile.dtype
        self.tile.copy_(value)


class Product:
    """A sum on its way: `done` once it was waited for."""

    def __init__(self, value: Tensor, done: bool = True) -> None:
        self.value, self.done = value, done


class Side:
    """Warps that do the same: what they have started and not waited for."""

    def __init__(self) -> None:
        self.products: deque = deque()
        self.stores: list = []
        self.turn, self.ended = threading.Semaphore(0), False

    def check(self) -> None:
        assert not self.products, "a product was never waited for"
        assert not self.stores, "a result was never waited for"


class Stopped(BaseException):
    """Another side has failed."""


class Chip:
    """One program: its number and its sides."""

    def __init__(self, program: int, late: bool) -> None:
        self.program, self.late = torch.tensor(program), late
        self.side, self.sides = Side(), []
        self.failure: BaseException | None = None
        self.idle = 0  # how many sides in a row found nothing to do
        self.language, self.tma, self.mbarrier = self._language(), self._tma(), self._mbarrier()

    # --- sides ---------------------------------------------------------------------------------------------------
    def specialize(self, parts: list, warps: list[int], registers: list[int]) -> None:
        assert len(parts) == len(warps) + 1 == len(registers) + 1
        main, self.sides = self.side, [Side() for _ in parts]
        threads = [
            threading.Thread(target=self._work, args=(side, *part, main))
            for side, part in zip(self.sides, parts, strict=True)
        ]
        for thread in threads:
            thread.start()
        self.side = self.sides[-1 if self.late else 0]
        self.side.turn.release()
        main.turn.acquire()
        for thread in threads:
            thread.join()
        self.side, self.sides = main, []
        if self.failure is not None:
            raise self.failure

    def _work(self, side: Side, function, args: tuple, main: Side) -> None:
        side.turn.acquire()
        try:
            if self.failure is None:
                with torch.no_grad():
                    function(*args)
                side.check()
        except Stopped:
            pass
        except BaseException as error:  # handed to the caller's thread
            self.failure = error
        side.ended, self.idle = True, 0
        left = [other for other in self.sides if not other.ended]
        self.side = left[0] if left else main
        self.side.turn.release()

    def step_back(self) -> None:
        """Lets another side go on."""
        mine = self.side
        others = [side for side in self.sides if side is not mine and not side.ended]
        if others:
            self.side = others[0]
            self.side.turn.release()
            mine.turn.acquire()
        if self.failure is not None:
            raise Stopped

    # --- products ------------------------------------------------------------------------------------------------
    def mma(
        self, a: Tensor | Shared, b: Shared, acc: Tensor | Product, *, use_acc: bool = True, is_async: bool = False
    ) -> Product:
        assert is_async
        before = acc if isinstance(acc, Product) else Product(acc)
        result = Product(torch.empty(0), done=False)

        def run() -> None:
            assert before.done
            left = a.tile if isinstance(a, Shared) else a
            assert left.dtype == b.tile.dtype == torch.bfloat16
            product = left.float() @ b.tile.float()
            result.value = before.value + product if use_acc else product
            result.done = True

        if self.late:
            self.side.products.append(run)
        else:
            run()
            self.side.products.append(lambda: None)
        return result

    def mma_wait(self, outstanding: int = 0, deps: list | None = None) -> Tensor | tuple[Tensor, ...]:
        while len(self.side.products) > outstanding:
            self.side.products.popleft()()
        assert deps
        for x in deps:
            assert x.done, "a result is used before the wait reaches it"
        values = tuple(x.value for x in deps)
        return values if len(values) > 1 else values[0]

    # --- copies --------------------------------------------------------------------------------------------------
    def _tma(self) -> types.SimpleNamespace:
        def rows(desc, coordinates: list) -> tuple[Tensor, int, int]:
            b, h, row, column = (int(x) for x in coordinates)
            assert column == 0
            return desc.base[b, h], row, desc.base.shape[2]

        def fetch(desc, coordinates, barrier, target: Shared, pred=True) -> None:
            if not pred:
                return
            source, row, length = rows(desc, coordinates)
            tile = target.tile.view(target.tile.shape[-2:])

            def run() -> None:
                tile.zero_()
                low, high = max(0, -row), min(tile.shape[0], length - row)
                if high > low:
                    tile[low:high, : source.shape[1]] = source[row + low : row + high]

            barrier.arrived += tile.numel() * tile.element_size()
            if self.late:
                barrier.copies.append(run)
                tile.fill_(NAN)  # from now on nobody may read it
            else:
                run()

        def store(desc, coordinates, source: Shared) -> None:
            target, row, length = rows(desc, coordinates)
            assert row >= 0, "the copy engine traps at rows before the first"
            tile = source.tile.view(source.tile.shape[-2:])

            def run() -> None:
                high = min(tile.shape[0], length - row)
                target[row : row + high] = tile[:high, : target.shape[1]]

            if self.late:
                self.side.stores.append(run)
            else:
                run()

        def store_wait(pending: int) -> None:
            assert pending == 0
            for run in self.side.stores:
                run()
            self.side.stores.clear()

        return types.SimpleNamespace(
            async_copy_global_to_shared=fetch, async_copy_shared_to_global=store, store_wait=store_wait
        )

    def _mbarrier(self) -> types.SimpleNamespace:
        class Barrier:
            def __init__(self) -> None:
                self.expected = self.arrived = self.completed = 0
                self.copies: list = []

        class Barriers:
            def __init__(self, count: int) -> None:
                self.each = [Barrier() for _ in range(count)]

            def index(self, i: int) -> Barrier:
                return self.each[int(i)]

        def expect(barrier: Barrier, count: int, pred=True) -> None:
            barrier.expected += count if pred else 0

        def arrive(barrier: Barrier, count: int) -> None:
            assert count == 1
            barrier.completed += 1

        def wait(barrier: Barrier, phase: int, pred=True) -> None:
            if not pred:
                return
            if self.late and self.sides:
                self.step_back()
            while barrier.completed % 2 == phase:
                if barrier.expected == barrier.arrived > 0:
                    for run in barrier.copies:
                        run()
                    barrier.copies.clear()
                    barrier.expected = barrier.arrived = 0
                    barrier.completed += 1
                    break
                assert self.sides, "the bytes expected are not those that come"
                self.idle += 1
                assert self.idle <= 2 * len(self.sides), "all sides wait for each other"
                self.step_back()
            assert barrier.completed > 0, "nobody was waited for"
            self.idle = 0

        self.barriers = Barriers
        return types.SimpleNamespace(
            MBarrierLayout=lambda: "barrier", init=lambda barrier, count: None, expect=expect, arrive=arrive, wait=wait
        )

    # --- the language --------------------------------------------------------------------------------------------
    def _language(self) -> types.SimpleNamespace:
        def load(pointer: Pointer, mask: Tensor | None = None, other: float = NAN) -> Tensor:
            at = torch.as_tensor(pointer.at)
            keep = torch.ones_like(at, dtype=torch.bool) if mask is None else mask.expand(at.shape)
            found = torch.full(at.shape, other, dtype=torch.float64).to(pointer.flat.dtype)
            found[keep] = pointer.flat[at[keep]]
            return found

        def store(pointer: Pointer, value: Tensor, mask: Tensor | None = None) -> None:
            at = torch.as_tensor(pointer.at)
            keep = torch.ones_like(at, dtype=torch.bool) if mask is None else mask.expand(at.shape)
            pointer.flat[at[keep]] = value.expand(at.shape)[keep].to(pointer.flat.dtype)

        def allocate(dtype: torch.dtype, shape: list[int], layout: object) -> object:
            if layout == "barrier":
                return self.barriers(shape[0])
            return Shared(torch.full(shape, NAN, dtype=dtype))

        names = {
            "constexpr": lambda x: x, "bfloat16": torch.bfloat16, "float32": torch.float32, "int64": torch.int64,
            "load": load, "store": store, "allocate_shared_memory": allocate, "program_id": lambda axis: self.program,
            "arange": lambda low, high, layout: torch.arange(low, high),
            "zeros": lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
            "full": lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
            "where": torch.where, "exp": torch.exp, "abs": torch.abs, "sum": lambda x, axis: x.sum(axis),
            "maximum": lambda x, y, propagate_nan: x.clamp(min=y), "minimum": minimum,
            "cdiv": lambda a, b: (a + b - 1) // b, "static_range": range, "to_tensor": torch.tensor,
            "convert_layout": lambda x, layout, assert_trivial=False: x, "thread_barrier": lambda: None,
            "warp_specialize": self.specialize,
        }  # fmt: skip
        layouts = (
            "NVMMASharedLayout", "NVMMADistributedLayout", "DotOperandLayout", "BlockedLayout", "SliceLayout",
        )  # fmt: skip
        return types.SimpleNamespace(**names, **dict.fromkeys(layouts, Layout))


def minimum(a: Tensor, b: Tensor | float) -> Tensor:
    return torch.minimum(a, b) if isinstance(b, Tensor) else a.clamp(max=b)


class Layout:
    """None of ours has one, but some are asked for their parent's."""

    def __init__(self, *_: object, **__: object) -> None:
        self.value = self


def jit(function=None, **_: object):
    return function if function is not None else lambda function: function


FOLDER = Path(cosformer.ops.triton.__path__[0])


def _without_imports(name: str) -> types.CodeType:
    tree = ast.parse((FOLDER / name).read_text())
    tree.body = [x for x in tree.body if not isinstance(x, ast.Import | ast.ImportFrom)]
    return compile(tree, str(FOLDER / name), "exec")


NAMES = (
    "hopper_parts.py", "hopper_kernels.py", "hopper_wide_kernels.py", "hopper_wide_state.py", "hopper_wide_results.py",
    "hopper_wide_walk.py",
)  # fmt: skip
SOURCES = [_without_imports(name) for name in NAMES]


def run(name: str, programs: int, *args: object, late: bool, **flags: object) -> None:
    """As cosformer.ops.triton.hopper_call.launch."""
    for program in range(programs):
        chip = Chip(program, late)
        scope = {
            "gl": chip.language, "gluon": types.SimpleNamespace(jit=jit), "tma": chip.tma, "mbarrier": chip.mbarrier,
            "fence_async_shared": lambda: None, "warpgroup_mma": chip.mma, "warpgroup_mma_wait": chip.mma_wait,
            "PropagateNan": types.SimpleNamespace(ALL=None),
        }  # fmt: skip
        for source in SOURCES:
            exec(source, scope)  # constants of one name have their own value in each file
            if name in scope:
                break

        def given(x: object) -> object:
            if isinstance(x, Tensor):
                return Pointer.to(x)
            return torch.tensor(x) if isinstance(x, int) else x

        scope[name](*(given(x) for x in args), **flags)
        chip.side.check()
