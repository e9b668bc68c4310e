"""On a GPU alone: sizes no interpreter reaches, and the company of graphs, compilers and other devices."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cosformer import AttentionState, attention_step, cosformer_attention

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BF16, F32 = torch.bfloat16, torch.float32


def draw(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def with_gradients(q: Tensor, k: Tensor, v: Tensor, do: Tensor, **options) -> list[Tensor]:
    x = [t.detach().requires_grad_() for t in (q, k, v)]
    o = cosformer_attention(*x, backend="triton", **options)
    return [o.detach(), *torch.autograd.grad(o, x, do)]


def last_rows(q: Tensor, k: Tensor, v: Tensor, rows: int) -> Tensor:
    """By the definition in float64, horizon T."""
    t = k.shape[2]
    q, k, v = q[:, :, -rows:].double().relu(), k.double().relu(), v.double()
    at = torch.arange(t, device=q.device)
    ahead = at[-rows:, None] - at[None]
    w = (q @ k.mT) * torch.cos(math.pi / (2 * t) * ahead.double()) * (ahead >= 0)
    return w @ v / w.sum(-1, keepdim=True)


@pytest.mark.parametrize(("dtype", "bound"), [(BF16, 2.0**-7), (F32, 2.0**-20)], ids=["bf16", "fp32"])
@pytest.mark.parametrize("width", [32, 80, 128])
def test_a_million_tokens(width: int, dtype: torch.dtype, bound: float) -> None:
    """Angles stay exact: the last rows, which see everything, are as good as the first. An output averages a million
    values: errors of the weights average out, what remains is the rounding of the result and of the sums."""
    q, k, v = (draw(1, 2, 1_000_003, width, dtype=dtype) for _ in range(3))
    v = v + 1  # an average around 1, not around 0: relative to its size
    got = cosformer_attention(q, k, v, causal=True, backend="triton")[:, :, -5:].double()
    want = last_rows(q, k, v, 5)
    assert (got - want).abs().max().item() <= bound * want.abs().max().item()


def test_more_elements_than_an_int32_counts() -> None:
    heads, length = 33, 1 << 20
    q, k, v, do = (draw(1, heads, length, 64) for _ in range(4))
    assert q.numel() > 2**31
    got = with_gradients(q, k, v, do, causal=True)
    alone = with_gradients(*(x[:, -1:].contiguous() for x in (q, k, v, do)), causal=True)
    for a, b in zip(got, alone, strict=True):
        # the cut across the chip differs with the number of heads, and with it the order of additions
        assert (a[:, -1:].double() - b.double()).abs().max() <= 2.0**-6 * b.double().abs().max()


@pytest.mark.parametrize(("dtype", "width"), [(BF16, 64), (BF16, 128), (F32, 64)], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_the_same_bits_every_time(causal: bool, dtype: torch.dtype, width: int) -> None:
    q, k, v, do = (draw(2, 4, 1500, width, dtype=dtype) for _ in range(4))
    first = with_gradients(q, k, v, do, causal=causal)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, with_gradients(q, k, v, do, causal=causal), strict=True))


@pytest.mark.parametrize("width", [64, 33])
def test_any_strides_without_a_copy(width: int) -> None:
    """Heads side by side in one row of a projection, and a width no copy engine likes. Room is left for the
    denominators and for the states of stretches, at most two a processor."""
    b, h, t = 2, 4, 131_072
    joined = draw(b, t, 3, h, width)
    q, k, v = (x.transpose(1, 2) for x in joined.unbind(2))
    want = cosformer_attention(*(x.contiguous() for x in (q, k, v)), causal=True, backend="triton")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    got = cosformer_attention(q, k, v, causal=True, backend="triton")
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before - got.numel() * got.element_size()
    assert extra < 0.5 * got.numel() * got.element_size(), "an input was copied"
    torch.testing.assert_close(got, want, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_sequences_of_very_uneven_lengths(causal: bool, width: int) -> None:
    lengths = [1, 20_011, 64, 3, 700]
    total = sum(lengths)
    cu = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    q, k, v, do = (draw(1, 2, total, width) for _ in range(4))
    got = with_gradients(q, k, v, do, causal=causal, cu_seqlens=cu, horizon=total)
    at = 0
    for n in lengths:
        part = slice(at, at + n)
        alone = with_gradients(*(x[:, :, part] for x in (q, k, v, do)), causal=causal, horizon=total)
        for a, b in zip(got, alone, strict=True):
            assert (a[:, :, part].double() - b.double()).abs().max() <= 2.0**-6 * b.double().abs().max() + 2.0**-12
        at += n


def test_step_in_a_graph_is_the_eager_step() -> None:
    tokens = [draw(2, 4, 1, 64) for _ in range(3)]
    states = [AttentionState.zeros(2, 4, 64, 64, horizon=100, device="cuda") for _ in range(2)]
    eager = [attention_step(*tokens, states[0], backend="triton") for _ in range(5)]
    warm = AttentionState.zeros(2, 4, 64, 64, horizon=100, device="cuda")
    attention_step(*tokens, warm, backend="triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention_step(*tokens, states[1], backend="triton")
    states[1].sums.zero_()
    states[1].norm.zero_()
    for want in eager:
        graph.replay()
        torch.testing.assert_close(out, want, rtol=0, atol=0)


def test_forward_and_backward_in_a_graph() -> None:
    q, k, v, do = (draw(1, 2, 3000, 64) for _ in range(4))
    want = with_gradients(q, k, v, do, causal=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        with_gradients(q, k, v, do, causal=True)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = with_gradients(q, k, v, do, causal=True)
    for x in got:
        x.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_compiled_whole_and_under_autocast() -> None:
    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.silu(cosformer_attention(q, k, v, causal=True, horizon=4096))

    x = [draw(2, 4, 500, 64, dtype=F32).requires_grad_() for _ in range(3)]
    runs = []
    for run in (layer, torch.compile(layer, fullgraph=True)):
        with torch.autocast("cuda", dtype=BF16):
            o = run(*x)
        assert o.dtype == BF16
        runs.append([o, *torch.autograd.grad(o.float().square().sum(), x)])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=2**-6, atol=2**-6 * b.abs().max().item())


def test_checkpointed_gradients_are_the_same() -> None:
    x = [draw(2, 4, 500, 64).requires_grad_() for _ in range(3)]

    def run(*x: Tensor) -> Tensor:
        return cosformer_attention(*x, causal=True, backend="triton")

    plain = torch.autograd.grad(run(*x).float().sum(), x)
    again = torch.autograd.grad(checkpoint(run, *x, use_reentrant=False).float().sum(), x)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_gradient_of_a_plain_sum() -> None:
    """Its gradient is one number expanded, with strides of 0."""
    x = [draw(1, 2, 300, 64).requires_grad_() for _ in range(3)]
    o = cosformer_attention(*x, causal=True, backend="triton")
    plain = torch.autograd.grad(o.sum(), x, retain_graph=True)
    full = torch.autograd.grad(o, x, torch.ones_like(o))
    for a, b in zip(plain, full, strict=True):
        torch.testing.assert_close(a, b, rtol=2**-5, atol=2**-5 * b.abs().max().item())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_tensors_device_need_not_be_the_current_one() -> None:
    q, k, v = (draw(1, 2, 300, 64) for _ in range(3))
    here = cosformer_attention(q, k, v, causal=True, backend="triton")
    there = cosformer_attention(*(x.to("cuda:1") for x in (q, k, v)), causal=True, backend="triton")
    assert torch.equal(here, there.to(here.device))
