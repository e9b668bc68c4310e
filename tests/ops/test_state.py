"""The state: any cut of a sequence gives the same outputs and gradients; states turn, add, move and are saved."""

import pytest
import torch
from comparing import assert_rounding_only, worst
from safetensors.torch import load_file, save_file

from cosformer import AttentionState, attention_step, cosformer_attention

HORIZON = 200


def draw(*widths: int, length: int = 150, heads: int = 2, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.randn(2, heads, length, w, dtype=dtype, requires_grad=True) for w in widths]


@pytest.mark.parametrize("cuts", [[75], [1, 2, 3], [32, 64, 96, 128], [149], list(range(10, 150, 10))], ids=str)
def test_pieces_equal_the_whole(cuts: list[int], backend: str) -> None:
    q, k, v = draw(6, 6, 4)
    whole, end = cosformer_attention(q, k, v, causal=True, horizon=HORIZON, return_state=True, backend=backend)
    outs, state = [], None
    for i, j in zip([0, *cuts], [*cuts, 150], strict=True):
        o, state = cosformer_attention(
            q[:, :, i:j], k[:, :, i:j], v[:, :, i:j], causal=True, horizon=HORIZON, state=state, return_state=True,
            backend=backend,
        )  # fmt: skip
        outs.append(o)
    assert state is not None
    assert state.length == end.length == 150
    pieces = torch.cat(outs, 2)
    assert_rounding_only(pieces, whole, terms=150, size=v.abs().max().item())
    assert_rounding_only(state.sums, end.sums, terms=150, size=end.sums.abs().max().item())
    weights = [torch.randn_like(x) for x in (whole, end.sums, end.norm)]
    one = torch.autograd.grad((whole, end.sums, end.norm), (q, k, v), weights)
    many = torch.autograd.grad((pieces, state.sums, state.norm), (q, k, v), weights)
    for a, b in zip(many, one, strict=True):
        assert_rounding_only(a, b, terms=600, size=b.abs().max().item())


def test_state_is_the_recurrence_of_the_definition(backend: str) -> None:
    """h[t] = e^{iθ} h[t−1] + φ(k[t]) ⊗ [v[t], 1], in complex numbers, a token at a time."""
    q, k, v = (x.detach() for x in draw(5, 5, 3, length=40))
    _, state = cosformer_attention(q, k, v, causal=True, horizon=HORIZON, return_state=True, backend=backend)
    turn = torch.exp(torch.tensor(1j * torch.pi / (2 * HORIZON), dtype=torch.complex128))
    h = torch.zeros(2, 2, 5, 4, dtype=torch.complex128)
    ones = torch.ones_like(v[..., :1])
    values = torch.cat([v, ones], -1)
    for t in range(40):
        h = turn * h + k[:, :, t].relu()[..., None] * values[:, :, t, None, :]
    expected = torch.stack([h.real, h.imag], 2)
    got = torch.cat([state.sums, state.norm[..., None]], -1)
    assert_rounding_only(got, expected, terms=40, size=expected.abs().max().item())


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_steps_equal_the_whole(heads: int, masked: bool, backend: str) -> None:
    q, k, v = draw(24, 24, 40)
    q = torch.randn(2, heads, 150, 24, dtype=torch.float64)
    k, v = k.detach(), v.detach()
    mask = torch.rand(2, 150) > 0.3 if masked else torch.ones(2, 150, dtype=torch.bool)
    whole, end = cosformer_attention(
        q, k, v, causal=True, horizon=HORIZON, key_mask=mask, return_state=True, backend=backend
    )
    state = AttentionState.zeros(2, 2, 24, 40, horizon=HORIZON, dtype=torch.float64)
    for t in range(150):
        here = slice(t, t + 1)
        o = attention_step(q[:, :, here], k[:, :, here], v[:, :, here], state, key_mask=mask[:, here], backend=backend)
        assert_rounding_only(o, whole[:, :, here], terms=300, size=v.abs().max().item())
    assert state.length == 150
    assert_rounding_only(state.sums, end.sums, terms=300, size=end.sums.abs().max().item())
    assert_rounding_only(state.norm, end.norm, terms=300, size=end.norm.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_step_keeps_sums_in_fp32(dtype: torch.dtype, backend: str) -> None:
    q, k, v = (x.detach() for x in draw(16, 16, 20, length=60, dtype=dtype))
    state = AttentionState.zeros(2, 2, 16, 20, horizon=HORIZON)
    steps = [
        attention_step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state, backend=backend)
        for t in range(60)
    ]
    got = torch.cat(steps, 2)
    exact = cosformer_attention(q.double(), k.double(), v.double(), causal=True, horizon=HORIZON)
    assert got.dtype == dtype
    assert state.sums.dtype == torch.float32
    # the output's own rounding, and 60 fp32 roundings of sums
    bound = (torch.finfo(dtype).eps + 60 * torch.finfo(torch.float32).eps) * exact.abs().max().item()
    assert worst(got, exact) <= bound


def test_prefix_plus_suffix(backend: str) -> None:
    q, k, v = draw(6, 6, 4)
    options = {"causal": True, "horizon": HORIZON, "return_state": True, "backend": backend}
    _, whole = cosformer_attention(q, k, v, **options)
    _, a = cosformer_attention(q[:, :, :60], k[:, :, :60], v[:, :, :60], **options)
    _, b = cosformer_attention(q[:, :, 60:90], k[:, :, 60:90], v[:, :, 60:90], **options)
    _, c = cosformer_attention(q[:, :, 90:], k[:, :, 90:], v[:, :, 90:], **options)
    for joined in ((a + b) + c, a + (b + c)):
        assert joined.length == 150
        assert_rounding_only(joined.sums, whole.sums, terms=150, size=whole.sums.abs().max().item())
        assert_rounding_only(joined.norm, whole.norm, terms=150, size=whole.norm.abs().max().item())
    assert worst((b + a).sums, (a + b).sums) > 1e-3  # the order of a sequence matters


def test_turned_is_silence(backend: str) -> None:
    """A state turned by n equals n masked tokens."""
    q, k, v = draw(6, 6, 4, length=30)
    options = {"causal": True, "horizon": HORIZON, "return_state": True, "backend": backend}
    _, state = cosformer_attention(q[:, :, :20], k[:, :, :20], v[:, :, :20], **options)
    mask = torch.arange(30)[None].expand(2, -1) < 20
    _, silent = cosformer_attention(q, k, v, key_mask=mask, **options)
    turned = state.turned(10)
    assert turned.length == silent.length == 30
    assert_rounding_only(turned.sums, silent.sums, terms=60, size=silent.sums.abs().max().item())


def test_full_attention_sees_the_state_before_position_zero(backend: str) -> None:
    q, k, v = draw(6, 6, 4, length=50)
    _, past = cosformer_attention(
        q[:, :, :20], k[:, :, :20], v[:, :, :20], horizon=90, return_state=True, backend=backend
    )
    o, end = cosformer_attention(
        q[:, :, 20:], k[:, :, 20:], v[:, :, 20:], state=past, return_state=True, backend=backend
    )
    whole, whole_end = cosformer_attention(q, k, v, horizon=90, return_state=True, backend=backend)
    assert_rounding_only(o, whole[:, :, 20:], terms=100, size=v.abs().max().item())
    assert_rounding_only(end.sums, whole_end.sums, terms=100, size=end.sums.abs().max().item())


def test_saved_and_loaded(tmp_path, backend: str) -> None:
    q, k, v = draw(6, 6, 4)
    _, state = cosformer_attention(
        q[:, :, :60], k[:, :, :60], v[:, :, :60], causal=True, horizon=HORIZON, return_state=True, backend=backend
    )
    save_file(state.to_tensors(), tmp_path / "state.safetensors")
    loaded = AttentionState.from_tensors(load_file(tmp_path / "state.safetensors"))
    assert (loaded.length, loaded.horizon) == (60, HORIZON)
    rest = (q[:, :, 60:], k[:, :, 60:], v[:, :, 60:])
    one, other = (cosformer_attention(*rest, causal=True, state=s, backend=backend) for s in (state, loaded))
    assert torch.equal(one, other)


def test_from_tensors_refuses_something_else() -> None:
    with pytest.raises(ValueError, match="horizon, length missing"):
        AttentionState.from_tensors({"sums": torch.zeros(1), "norm": torch.zeros(1)})
    state = AttentionState.zeros(1, 2, 3, 4, horizon=5).to_tensors()
    with pytest.raises(ValueError, match="expected \\[B, Hkv, 2, K, V\\]"):
        AttentionState.from_tensors(state | {"norm": torch.zeros(1, 2, 2, 9)})


def test_one_prefix_many_continuations(backend: str) -> None:
    q, k, v = (x.detach() for x in draw(6, 6, 4))
    _, state = cosformer_attention(q, k, v, causal=True, horizon=HORIZON, return_state=True, backend=backend)
    rows = torch.tensor([1, 1, 0])
    chosen = state.select(rows)
    tokens = [torch.randn(3, 2, 1, w, dtype=torch.float64) for w in (6, 6, 4)]
    o = attention_step(*tokens, chosen, backend=backend)
    for i, row in enumerate(rows.tolist()):
        single = state.select(torch.tensor([row]))
        alone = attention_step(*(x[i : i + 1] for x in tokens), single, backend=backend)
        assert_rounding_only(o[i : i + 1], alone, terms=4, size=v.abs().max().item())
    assert state.length == 150  # the prefix is untouched


def test_states_that_do_not_fit_do_not_add() -> None:
    a = AttentionState.zeros(1, 2, 3, 4, horizon=5)
    with pytest.raises(ValueError, match="horizon 5 and 6 do not add"):
        a + AttentionState.zeros(1, 2, 3, 4, horizon=6)
    with pytest.raises(ValueError, match="do not add"):
        a + AttentionState.zeros(1, 2, 3, 9, horizon=5)
    with pytest.raises(TypeError):
        a + 1  # pyright: ignore[reportOperatorIssue]


def test_clone_is_independent_and_moves() -> None:
    a = AttentionState.zeros(1, 1, 2, 2, horizon=5)
    b = a.clone().to("cpu").detach()
    attention_step(*(torch.ones(1, 1, 1, 2) for _ in range(3)), b)
    assert (a.length, b.length) == (0, 1)
    assert not a.sums.any()
    assert b.sums.any()
    assert a.nbytes == 4 * (2 * 2 * 2 + 2 * 2)
