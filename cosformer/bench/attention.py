"""`bench attention`: our operator against softmax (SDPA) in the same process, on one device."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.bench.timing import Time, interleaved, keep_freed_memory
from cosformer.ops.attention import attention_step, cosformer_attention
from cosformer.ops.backends import choose_backend
from cosformer.ops.cost import flops_per_token
from cosformer.ops.features import sum_dtype
from cosformer.ops.state import AttentionState

SOFTMAX, CAUSAL, FULL, MATMUL = "softmax (SDPA), causal", "cosformer, causal", "cosformer, bidirectional", "matmul"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionBench:
    lengths: tuple[int, ...] = (512, 1_024, 4_096, 16_384, 65_536)
    tokens: int = 0
    """Tokens of a batch: short sequences are batched up to this many, as a GPU needs; 0: one sequence."""
    heads: int = 8
    width: int = 64
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    backend: str = "auto"
    repeats: int = 9
    softmax_limit: int = 16_384
    """Longest forward softmax is asked for: it takes 16 times as long at four times the length."""
    softmax_backward_limit: int = 4_096

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths={self.lengths}: give at least one positive length")
        if self.repeats < 1:
            raise ValueError(f"repeats={self.repeats}: measure at least once")

    def batch(self, length: int) -> int:
        return max(1, self.tokens // length)


CUDA = AttentionBench(
    lengths=(1_024, 8_192, 65_536), tokens=131_072, heads=16, dtype=torch.bfloat16, device="cuda:0", repeats=50,
    softmax_limit=65_536, softmax_backward_limit=65_536,
)  # fmt: skip
"""What fills a GPU; `AttentionBench()` is for a CPU."""


@dataclass(slots=True)
class Row:
    """One length. Times in ms; ratios are softmax over ours; shares are of the matmul rate of the same minutes."""

    length: int
    batch: int
    matmul_gflops: float
    forward: dict[str, Time] = field(default_factory=dict)
    training: dict[str, Time] = field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        return self.forward[SOFTMAX].ms / self.forward[CAUSAL].ms if SOFTMAX in self.forward else None

    @property
    def training_speedup(self) -> float | None:
        return self.training[SOFTMAX].ms / self.training[CAUSAL].ms if SOFTMAX in self.training else None

    @property
    def full_over_causal(self) -> float:
        return self.forward[CAUSAL].ms / self.forward[FULL].ms

    def share(self, name: str, heads: int, width: int) -> float:
        operations = flops_per_token(width, width, causal=name == CAUSAL) * heads * self.length * self.batch
        return operations / (self.forward[name].ms * 1e6) / self.matmul_gflops

    def to_json(self, heads: int, width: int) -> dict[str, object]:
        return {
            "length": self.length,
            "batch": self.batch,
            "matmul_gflops": self.matmul_gflops,
            "forward_ms": {name: asdict(t) for name, t in self.forward.items()},
            "forward_backward_ms": {name: asdict(t) for name, t in self.training.items()},
            "speedup_forward": self.speedup,
            "speedup_forward_backward": self.training_speedup,
            "bidirectional_over_causal": self.full_over_causal,
            "matmul_share": {name: self.share(name, heads, width) for name in (CAUSAL, FULL)},
            "ns_per_token_and_head": self.forward[CAUSAL].ms * 1e6 / (self.length * self.batch * heads),
        }


def measure(bench: AttentionBench) -> Iterator[Row]:
    """One row after another, shortest first."""
    device = torch.device(bench.device)
    keep_freed_memory()  # for both systems alike
    side = 2_048 if device.type == "cpu" else 8_192  # large enough for the machine's full rate
    a, b = (torch.randn(side, side, device=device, dtype=bench.dtype) for _ in range(2))
    for length in sorted(bench.lengths):
        batch = bench.batch(length)
        shape = (batch, bench.heads, length, bench.width)
        q, k, v, g = (torch.randn(shape, device=device, dtype=bench.dtype) for _ in range(4))
        repeats = bench.repeats if length <= 16_384 else max(3, bench.repeats // 2)

        def ours(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
            return cosformer_attention(q, k, v, causal=causal, backend=bench.backend)

        def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        systems: dict[str, Callable[[], object]] = {MATMUL: lambda: a @ b}
        if length <= bench.softmax_limit:
            systems[SOFTMAX] = lambda q=q, k=k, v=v: softmax(q, k, v)
        systems[CAUSAL] = lambda q=q, k=k, v=v, ours=ours: ours(q, k, v)
        systems[FULL] = lambda q=q, k=k, v=v, ours=ours: ours(q, k, v, causal=False)
        with torch.no_grad():
            forward = interleaved(systems, device, repeats)
        row = Row(length, batch, matmul_gflops=2 * side**3 / (forward.pop(MATMUL).ms * 1e6), forward=forward)

        for x in (q, k, v):
            x.requires_grad_()
        training: dict[str, Callable[[], object]] = {}
        if length <= bench.softmax_backward_limit:
            training[SOFTMAX] = lambda x=(q, k, v), g=g: torch.autograd.grad(softmax(*x), x, g)
        training[CAUSAL] = lambda x=(q, k, v), g=g, ours=ours: torch.autograd.grad(ours(*x), x, g)
        row.training = interleaved(training, device, repeats)
        yield row


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One decoding step (B=1), against one bare batched matrix–vector product over a state of the same size; µs."""

    early: float
    late: float
    product: float


def measure_step(bench: AttentionBench) -> StepTimes:
    device, heads, width = torch.device(bench.device), bench.heads, bench.width
    token = [torch.randn(1, heads, 1, width, device=device, dtype=bench.dtype) for _ in range(3)]
    matrix = torch.randn(heads, 2 * width, width + 1, device=device, dtype=bench.dtype)
    vector = torch.randn(heads, 1, 2 * width, device=device, dtype=bench.dtype)
    sums = sum_dtype(bench.dtype)
    states = [
        AttentionState.zeros(1, heads, width, width, horizon=1 << 21, dtype=sums, device=device) for _ in range(2)
    ]
    states[1].length = 1_000_000
    loop = 200

    def steps(state: AttentionState) -> None:
        start = state.length
        for _ in range(loop):
            attention_step(token[0], token[1], token[2], state, backend=bench.backend)
        state.length = start

    def products() -> None:
        for _ in range(loop):
            torch.bmm(vector, matrix)

    with torch.no_grad():
        times = interleaved(
            {"early": lambda: steps(states[0]), "late": lambda: steps(states[1]), "product": products}, device, 15
        )
    return StepTimes(*(times[name].ms * 1e3 / loop for name in ("early", "late", "product")))


def backend_in_words(bench: AttentionBench) -> str:
    device = torch.device(bench.device)
    return str(choose_backend(bench.backend, device, dtype=bench.dtype, widest=bench.width))
