"""Self attention of q, k and v side by side: the numbers of the operator for parts, gradients in one piece."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from cosformer import cosformer_attention
from cosformer.ops.joined import joined_attention, parts

TRITON = pytest.param(
    "triton",
    marks=[
        pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
        pytest.mark.skipif(torch.cuda.is_available(), reason="these tensors are on the CPU: interpreted without a GPU"),
        pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # the interpreter itself
    ],
)
BACKENDS = ["cpu", "torch", TRITON]

pytestmark = pytest.mark.usefixtures("_poisoned")


def draw(
    b: int = 2, t: int = 45, heads: int = 4, shared: int = 2, width: int = 12, dtype: torch.dtype = torch.float64
) -> Tensor:
    return torch.randn(b, t, heads + 2 * shared, width, dtype=dtype)


def exactest(backend: str) -> torch.dtype:
    return torch.float32 if backend == "triton" else torch.float64


def both(qkv: Tensor, heads: int, **options: Any) -> tuple[Tensor, Tensor]:
    return joined_attention(qkv, heads, horizon=64, **options), cosformer_attention(
        *parts(qkv, heads), horizon=64, **options
    )


CASES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "bidirectional": {},
    "masked": {"causal": True, "key_mask": torch.arange(45).expand(2, 45) % 7 > 1},
    "not normalised": {"normalize": False, "feature_map": "silu"},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_the_parts(name: str, shared: int, backend: str) -> None:
    qkv = draw(shared=shared, dtype=exactest(backend)).requires_grad_()
    weights = torch.randn(2, 4, 45, 12, dtype=torch.float64)
    o, want = both(qkv, 4, backend=backend, **CASES[name])
    assert torch.equal(o, want)
    assert o.stride() == want.stride()
    (got,), (grad,) = (torch.autograd.grad((x * weights).sum(), qkv) for x in (o, want))
    assert torch.equal(got, grad)
    assert got.is_contiguous()


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_sequences(backend: str) -> None:
    qkv, cu = draw(b=1, t=30, dtype=exactest(backend)).requires_grad_(), torch.tensor([0, 7, 8, 30])
    o, want = both(qkv, 4, causal=True, cu_seqlens=cu, backend=backend)
    assert torch.equal(o, want)
    (got,), (grad,) = (torch.autograd.grad(x.square().sum(), qkv) for x in (o, want))
    assert torch.equal(got, grad)


def test_first_and_second_derivatives() -> None:
    qkv = draw(b=1, t=5, heads=2, shared=1, width=3).requires_grad_()
    call = lambda x: joined_attention(x, 2, horizon=8, causal=True, feature_map="silu")  # noqa: E731
    assert torch.autograd.gradcheck(call, qkv)
    assert torch.autograd.gradgradcheck(call, qkv)


def test_torch_finds_nothing_wrong_with_it() -> None:
    qkv = draw(dtype=torch.float32).requires_grad_()
    arguments = (qkv, None, None, 4, True, 64, "relu", True, 1e-6, "auto")
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.cosformer.attention_joined.default, arguments, test_utils=checks)


def test_any_strides() -> None:
    """Promised to the compiler as they come out."""
    qkv = draw(dtype=torch.float32).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()  # heads outside
    arguments = (qkv, None, None, 4, True, 64, "relu", True, 1e-6, "auto")
    torch.library.opcheck(torch.ops.cosformer.attention_joined.default, arguments, test_utils="test_faketensor")
    o, want = both(qkv, 4, causal=True)
    assert torch.equal(o, want)
    (got,), (grad,) = (torch.autograd.grad(x.square().sum(), qkv) for x in (o, want))
    assert torch.equal(got, grad)


@pytest.fixture
def _no_loops():
    """Where vmap has no rule it calls an operator once for each slice: here that is an error."""
    before = torch._C._functorch._is_vmap_fallback_enabled()
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(before)


@pytest.mark.usefixtures("_no_loops")
@pytest.mark.parametrize("in_dims", [(0, None), (2, 0), (0, 1)], ids=str)
def test_vmap_becomes_batch(in_dims: tuple) -> None:
    qkv, mask = draw().unsqueeze(0).repeat(3, 1, 1, 1, 1).mul_(torch.rand(3, 1, 1, 1, 1)), torch.rand(3, 2, 45) > 0.3
    run = lambda x, m: joined_attention(x, 4, horizon=64, causal=True, key_mask=m)  # noqa: E731
    masks = mask[0].expand(3, -1, -1) if in_dims[1] is None else mask
    want = torch.stack([run(x, m) for x, m in zip(qkv, masks, strict=True)])
    given = mask[0] if in_dims[1] is None else mask.movedim(0, in_dims[1])
    got = torch.func.vmap(run, in_dims=in_dims)(qkv.movedim(0, in_dims[0]), given)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    o, z = torch.ops.cosformer.attention_joined(qkv[0], None, None, 4, True, 64, "relu", True, 1e-6, "auto")
    dos = torch.randn(3, *o.shape, dtype=torch.float64)
    back = lambda do: torch.ops.cosformer.attention_joined_backward(  # noqa: E731
        do, qkv[0], o, z, None, None, 4, True, 64, "relu", True, 1e-6, "auto"
    )
    torch.testing.assert_close(torch.func.vmap(back)(dos), torch.stack([back(do) for do in dos]))


def test_vmap_refuses_packed() -> None:
    cu = torch.tensor([0, 7, 45])
    with pytest.raises(NotImplementedError, match="vmap over packed sequences"):
        torch.func.vmap(lambda x: joined_attention(x, 4, horizon=64, cu_seqlens=cu))(draw(b=3).unsqueeze(1))


def test_compiled_the_gradient_is_one_operator() -> None:
    graphs: list[str] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return make_boxed_func(graph.forward)

    qkv = draw(dtype=torch.float32).requires_grad_()
    call = torch.compile(
        lambda x: joined_attention(x, 4, horizon=64, causal=True).square().sum(),
        backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True,
    )  # fmt: skip
    call(qkv).backward()
    want = torch.autograd.grad(joined_attention(qkv, 4, horizon=64, causal=True).square().sum(), qkv)[0]
    assert torch.equal(qkv.grad, want)
    assert graphs[-1].count("torch.ops.cosformer.attention_joined_backward") == 1
    assert "cat" not in graphs[-1]


def test_a_horizon_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="horizon=44"):
        joined_attention(draw(), 4, horizon=44)
    with pytest.raises(ValueError, match="key_mask has shape"):
        joined_attention(draw(), 4, horizon=64, key_mask=torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", [{"causal": True}, {}], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("shared", [2, 4])
@pytest.mark.parametrize("width", [32, 64, 128, 33])
def test_on_a_gpu_gradients_are_written_in_place(width: int, shared: int, options: dict[str, Any]) -> None:
    """The same kernels on other addresses: the same bits, and nothing beside a tensor is overwritten."""
    qkv = draw(b=3, t=1_111, shared=shared, width=width, dtype=torch.float32).to("cuda", torch.bfloat16)
    qkv.requires_grad_()
    o, want = (call(qkv) for call in (
        lambda x: joined_attention(x, 4, horizon=2_048, **options),
        lambda x: cosformer_attention(*parts(x, 4), horizon=2_048, **options),
    ))  # fmt: skip
    assert torch.equal(o, want)
    weights = torch.randn_like(o)
    (got,), (grad,) = (torch.autograd.grad((x * weights).sum(), qkv) for x in (o, want))
    assert torch.equal(got, grad)
