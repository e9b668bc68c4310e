"""What torch expects of an operator: opcheck, gradcheck, compile, export, vmap, autocast, checkpointing."""

import pytest
import torch
from comparing import assert_rounding_only, worst
from torch._dynamo.testing import CompileCounterWithBackend

from cosformer import AttentionState, attention_reference, attention_step, attention_weights, cosformer_attention


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("causal", [True, False])
def test_first_and_second_derivatives(causal: bool, backend: str) -> None:
    def run(q, k, v, sums, norm):
        state = AttentionState(sums=sums, norm=norm.exp(), length=2, horizon=11)
        o, end = cosformer_attention(
            q, k, v, causal=causal, state=state, return_state=True, feature_map="elu1", backend=backend
        )
        return o, end.sums, end.norm

    inputs = (draw(1, 2, 3, 2), draw(1, 1, 4, 2), draw(1, 1, 4, 3), draw(1, 1, 2, 2, 3), draw(1, 1, 2, 2))
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_second_derivatives_of_packed_and_masked(backend: str) -> None:
    cu, mask = torch.tensor([0, 2, 5]), torch.tensor([[True, False, True, True, False]])

    def run(q, k, v):
        return cosformer_attention(
            q, k, v, cu_seqlens=cu, key_mask=mask, feature_map="silu", normalize=False, backend=backend
        )

    inputs = (draw(1, 1, 5, 2), draw(1, 1, 5, 2), draw(1, 1, 5, 2))
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("loss", ["linear", "squared"])
@pytest.mark.parametrize("shared", [False, True])
def test_second_derivatives_where_gradients_depend_on_the_inputs(loss: str, shared: bool, backend: str) -> None:
    """q, k and v from one tensor, and a loss whose gradient depends on the output: paths must not be counted twice."""
    x = draw(1, 1, 5, 3)
    weights = torch.arange(15, dtype=torch.float64).view(1, 1, 5, 3)

    def penalty(attend) -> torch.Tensor:
        q, k, v = (x, x, x) if shared else (x, x.sin(), x.cos())
        o = attend(q, k, v, causal=True, horizon=9, feature_map="elu1")
        value = (o * weights).sum() if loss == "linear" else o.pow(2).sum()
        (g,) = torch.autograd.grad(value, x, create_graph=True)
        return torch.autograd.grad(g.pow(2).sum(), x)[0]

    want = penalty(attention_reference)
    got = penalty(lambda *a, **o: cosformer_attention(*a, backend=backend, **o))
    assert_rounding_only(got, want, terms=100, size=want.abs().max().item())


def test_a_step_is_seen_by_autograd_and_by_tracers(backend: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    state = AttentionState.zeros(1, 1, 4, 4, horizon=9)
    q, k, v = (torch.rand(1, 1, 1, 4) for _ in range(3))
    o = cosformer_attention(q.clone().requires_grad_(), k, v, causal=True, state=state, backend=backend)
    attention_step(q, k, v, state, backend=backend)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()
    negated = torch.complex(v, -v).conj().imag  # a view with its sign pending
    assert negated.is_neg()
    one, other = state.clone(), state.clone()
    assert torch.equal(
        attention_step(q, k, negated, one, backend=backend), attention_step(q, k, v.clone(), other, backend=backend)
    )
    graph = make_fx(lambda q, k, v: attention_step(q, k, v, state.clone(), backend=backend))(q, k, v)
    assert any("cosformer.step" in str(node.target) for node in graph.graph.nodes)
    with FakeTensorMode():
        fake = AttentionState.zeros(1, 1, 4, 4, horizon=9)
        assert attention_step(*(torch.rand(1, 1, 1, 4) for _ in range(3)), fake, backend=backend).shape == (1, 1, 1, 4)


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_opcheck(state: bool, packed: bool, backend: str) -> None:
    q = torch.randn(1, 6, 4, 3).transpose(1, 2).requires_grad_()
    k, v = torch.randn(1, 2, 6, 3, requires_grad=True), torch.randn(1, 2, 6, 5, requires_grad=True)
    cu = torch.tensor([0, 2, 6]) if packed else None
    n = 2 if packed else 1
    sums, norm = (torch.randn(n, 2, 2, 3, 5, requires_grad=True), torch.randn(n, 2, 2, 3)) if state else (None, None)
    mask = torch.rand(1, 6) > 0.5
    arguments = (q, k, v, mask, cu, cu, sums, norm, None, True, 11, "relu", True, 1e-6, state, backend)
    torch.library.opcheck(torch.ops.cosformer.attention.default, arguments)
    step = (
        q[:, :, :1].detach(),
        k[:, :, :1].detach(),
        v[:, :, :1].detach(),
        torch.zeros(1, 2, 2, 3, 5),
        torch.zeros(1, 2, 2, 3),
    )
    torch.library.opcheck(torch.ops.cosformer.step.default, (*step, None, 11, "relu", True, 1e-6, backend))


def test_compiles_whole_and_once_for_all_lengths(backend: str) -> None:
    torch._dynamo.reset()

    def layer(q, k, v):
        return cosformer_attention(q * 2, k, v + 1, causal=True, backend=backend) * 0.5

    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(layer, fullgraph=True, backend=counter)
    for n in (33, 47, 90, 128, 200):
        x = [torch.randn(1, n, 2, 8).transpose(1, 2).requires_grad_() for _ in range(3)]
        got, want = run(*x), layer(*x)
        assert torch.equal(got, want)
        for a, b in zip(*(torch.autograd.grad(o.square().sum(), x) for o in (got, want)), strict=True):
            assert torch.equal(a, b)
    assert counter.frame_count <= 2  # once for the first length, once for any length


def test_compiles_with_inductor(backend: str) -> None:
    torch._dynamo.reset()
    x = [torch.randn(1, 40, 2, 8).transpose(1, 2).requires_grad_() for _ in range(3)]

    def loss(q, k, v):
        return (cosformer_attention(q.sin(), k, v, backend=backend) + 1).square().mean()

    got, want = torch.compile(loss, fullgraph=True)(*x), loss(*x)
    torch.testing.assert_close(got, want)
    for a, b in zip(*(torch.autograd.grad(o, x) for o in (got, want)), strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_steps_update_the_state(backend: str) -> None:
    torch._dynamo.reset()
    tokens = [torch.randn(6, 1, 2, 1, 8) for _ in range(3)]

    def decode(q, k, v, state):
        return attention_step(q, k, v, state, backend=backend)

    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(decode, fullgraph=True, backend=counter)
    one, other = (AttentionState.zeros(1, 2, 8, 8, horizon=9) for _ in range(2))
    for q, k, v in zip(*tokens, strict=True):
        assert torch.equal(run(q, k, v, one), decode(q, k, v, other))
    assert torch.equal(one.sums, other.sums)
    assert one.length == other.length == 6
    assert counter.frame_count <= 3


def test_exports_with_any_length(backend: str) -> None:
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return cosformer_attention(q, k, v, causal=True, horizon=500, backend=backend)

    length = torch.export.Dim("length", min=2, max=400)
    x = [torch.randn(1, 2, 64, 8) for _ in range(3)]
    program = torch.export.export(Layer(), tuple(x), dynamic_shapes=({2: length},) * 3)
    y = [torch.randn(1, 2, 99, 8) for _ in range(3)]
    assert torch.equal(program.module()(*y), Layer()(*y))


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (2, None, 0), (0, 1, None)], ids=str)
def test_vmap_becomes_batch(in_dims: tuple, backend: str) -> None:
    shapes = [(2, 3, 10, 4), (2, 3, 10, 4), (2, 3, 10, 5)]
    x = []
    for shape, dim in zip(shapes, in_dims, strict=True):
        x.append(torch.randn(shape if dim is None else (*shape[:dim], 6, *shape[dim:])))

    def run(q, k, v):
        return cosformer_attention(q, k, v, causal=True, backend=backend)

    got = torch.func.vmap(run, in_dims=in_dims)(*x)
    for i in range(6):
        one = [t if dim is None else t.select(dim, i) for t, dim in zip(x, in_dims, strict=True)]
        assert worst(got[i], run(*one)) <= 4 * torch.finfo(torch.float32).eps * 4


def test_vmap_refuses_packed(backend: str) -> None:
    x = torch.randn(3, 1, 2, 6, 4)
    cu = torch.tensor([0, 2, 6])
    with pytest.raises(NotImplementedError, match="vmap over packed sequences"):
        torch.func.vmap(lambda x: cosformer_attention(x, x, x, cu_seqlens=cu, backend=backend))(x)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_lowers_inputs_and_keeps_sums(low: torch.dtype, backend: str) -> None:
    q, k, v = (torch.randn(1, 2, 300, 16, requires_grad=True) for _ in range(3))
    with torch.autocast("cpu", low):
        o, state = cosformer_attention(q, k.to(low), v, horizon=300, return_state=True, backend=backend)
    assert o.dtype == low
    assert state.sums.dtype == torch.float32
    plain = cosformer_attention(q.to(low), k.to(low), v.to(low), horizon=300, backend=backend)
    assert torch.equal(o, plain)
    o.float().sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.float32
    with torch.autocast("cpu", low):
        wide = cosformer_attention(q.double(), k.double(), v.double(), backend=backend)
    assert wide.dtype == torch.float64


def test_autocast_reaches_the_step_and_spares_the_reference(backend: str) -> None:
    q, k, v = (torch.randn(1, 2, 1, 16) for _ in range(3))
    state = AttentionState.zeros(1, 2, 16, 16, horizon=9)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention_step(q, k.bfloat16(), v, state, backend=backend).dtype == torch.bfloat16
        weights = attention_weights(q, k, normalize=False)
    assert torch.equal(weights, attention_weights(q, k, normalize=False))


def test_checkpointing_changes_nothing(backend: str) -> None:
    x = [torch.randn(1, 2, 50, 8, requires_grad=True) for _ in range(3)]

    def run(q, k, v):
        return cosformer_attention(q, k, v, causal=True, backend=backend)

    plain = torch.autograd.grad(run(*x).sum(), x)
    saved = torch.autograd.grad(torch.utils.checkpoint.checkpoint(run, *x, use_reentrant=False).sum(), x)
    assert all(torch.equal(a, b) for a, b in zip(plain, saved, strict=True))


def test_only_the_state_is_used(backend: str) -> None:
    """A loss on the state alone, and one on its norm alone."""
    for part in ("sums", "norm"):
        k, v = (torch.randn(1, 1, 9, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        _, state = cosformer_attention(k.detach(), k, v, causal=True, horizon=9, return_state=True, backend=backend)
        turn = torch.cos(torch.pi / 18 * (8 - torch.arange(9, dtype=torch.float64)))[:, None]
        phi = k.relu() * turn
        want = (phi.mT @ v).sum() if part == "sums" else phi.sum()
        got = getattr(state, part)[:, :, 0].sum()
        assert_rounding_only(got, want, terms=40, size=10)
        for a, b in zip(
            torch.autograd.grad(got, (k, v), materialize_grads=True),
            torch.autograd.grad(want, (k, v), materialize_grads=True), strict=True,
        ):  # fmt: skip
            assert_rounding_only(a, b, terms=40, size=10)
