"""Packed sequences: the same as each alone, without a token of padding."""

import pytest
import torch
from comparing import assert_rounding_only

from cosformer import AttentionState, cosformer_attention

pytestmark = pytest.mark.usefixtures("_poisoned")
LENGTHS = [[5], [1, 1, 1], [33, 1, 64, 2], [1, 1100, 3], [40] * 5]


def offsets(lengths: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_packed_equals_each_alone(lengths: list[int], causal: bool, masked: bool, backend: str) -> None:
    total = sum(lengths)
    q = torch.randn(1, 4, total, 6, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(1, 2, total, w, dtype=torch.float64, requires_grad=True) for w in (6, 5))
    mask = torch.rand(1, total) > 0.3 if masked else None
    options = {"causal": causal, "horizon": max(lengths) + 3, "return_state": True, "backend": backend}
    o, state = cosformer_attention(q, k, v, cu_seqlens=offsets(lengths), key_mask=mask, **options)
    assert isinstance(state.length, torch.Tensor)
    assert state.length.tolist() == lengths
    parts = [
        cosformer_attention(
            q[:, :, i:j], k[:, :, i:j], v[:, :, i:j], key_mask=None if mask is None else mask[:, i:j], **options
        )
        for i, j in torch.stack([offsets(lengths)[:-1], offsets(lengths)[1:]], 1).tolist()
    ]
    alone = torch.cat([p[0] for p in parts], 2)
    sums = torch.cat([p[1].sums for p in parts])
    assert_rounding_only(o, alone, terms=8, size=v.abs().max().item())
    assert_rounding_only(state.sums, sums, terms=8, size=sums.abs().max().item())
    weights = (torch.randn_like(o), torch.randn_like(sums))
    got = torch.autograd.grad((o, state.sums), (q, k, v), weights)
    want = torch.autograd.grad((alone, sums), (q, k, v), weights)
    for a, b in zip(got, want, strict=True):
        assert_rounding_only(a, b, terms=64, size=b.abs().max().item())


@pytest.mark.parametrize("causal", [True, False])
def test_packed_equals_padded(causal: bool, backend: str) -> None:
    lengths, longest = [7, 30, 2], 30
    q, k, v = (torch.randn(3, 2, longest, 8) for _ in range(3))
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    padded = cosformer_attention(q, k, v, causal=causal, key_mask=mask, backend=backend)
    packed = [torch.cat([x[i, :, :n] for i, n in enumerate(lengths)], 1)[None] for x in (q, k, v)]
    o = cosformer_attention(*packed, causal=causal, cu_seqlens=offsets(lengths, torch.int32), backend=backend)
    want = torch.cat([padded[i, :, :n] for i, n in enumerate(lengths)], 1)[None]
    torch.testing.assert_close(o, want, rtol=0, atol=30 * torch.finfo(torch.float32).eps * v.abs().max().item())


@pytest.mark.parametrize("causal", [True, False])
def test_keys_packed_differently(causal: bool, backend: str) -> None:
    queries, keys = [3, 1, 5], [4, 2, 6]
    q = torch.randn(1, 2, sum(queries), 6, dtype=torch.float64)
    k, v = (torch.randn(1, 2, sum(keys), w, dtype=torch.float64) for w in (6, 5))
    o = cosformer_attention(
        q, k, v, causal=causal, horizon=9, cu_seqlens=offsets(queries), cu_seqlens_k=offsets(keys), backend=backend
    )
    a, b = offsets(queries), offsets(keys)
    alone = [
        cosformer_attention(
            q[:, :, a[i] : a[i + 1]], k[:, :, b[i] : b[i + 1]], v[:, :, b[i] : b[i + 1]], causal=causal, horizon=9
        )
        for i in range(3)
    ]
    assert_rounding_only(o, torch.cat(alone, 2), terms=8, size=v.abs().max().item())


def test_packed_states_continue_as_a_batch(backend: str) -> None:
    """Prompts of unequal length, packed; then one token for each of them."""
    lengths = [7, 30, 2]
    total = sum(lengths)
    q, k, v = (torch.randn(1, 2, total, w, dtype=torch.float64) for w in (6, 6, 5))
    tokens = [torch.randn(3, 2, 4, w, dtype=torch.float64) for w in (6, 6, 5)]
    _, state = cosformer_attention(
        q, k, v, causal=True, horizon=50, cu_seqlens=offsets(lengths), return_state=True, backend=backend
    )
    o, after = cosformer_attention(*tokens, causal=True, state=state, return_state=True, backend=backend)
    assert isinstance(after.length, torch.Tensor)
    assert after.length.tolist() == [11, 34, 6]
    at = offsets(lengths)
    for i in range(3):
        whole = [
            torch.cat([x[:, :, at[i] : at[i + 1]], y[i : i + 1]], 2) for x, y in zip((q, k, v), tokens, strict=True)
        ]
        want = cosformer_attention(*whole, causal=True, horizon=50)[:, :, -4:]
        assert_rounding_only(o[i : i + 1], want, terms=50, size=v.abs().max().item())
    shorter = AttentionState(sums=state.sums, norm=state.norm, length=state.length, horizon=33)
    with pytest.raises(ValueError, match="horizon=33 but the longest sequence has 4 positions after 30"):
        cosformer_attention(*tokens, causal=True, state=shorter, backend=backend)


def test_many_short_sequences_need_no_memory_of_their_own(compiled: None) -> None:
    lengths = [1 + i % 3 for i in range(3000)]
    q, k, v = (torch.randn(1, 2, sum(lengths), 8) for _ in range(3))
    o = cosformer_attention(q, k, v, cu_seqlens=offsets(lengths), backend="cpu")
    assert o.isfinite().all()


def test_the_horizon_is_checked_sequence_by_sequence(backend: str) -> None:
    """A long past and a short present, beside a short past and a long present: 11 positions each, horizon 11."""
    x = torch.rand(1, 1, 11, 4)
    state = AttentionState(
        sums=torch.rand(2, 1, 2, 4, 4), norm=torch.rand(2, 1, 2, 4), length=torch.tensor([10, 1]), horizon=11
    )
    cu = offsets([1, 10])
    assert cosformer_attention(x, x, x, causal=True, cu_seqlens=cu, state=state, backend=backend).isfinite().all()
    with pytest.raises(ValueError, match="10 positions after 10 held"):
        cosformer_attention(x, x, x, causal=True, cu_seqlens=offsets([10, 1]), state=state, backend=backend)
