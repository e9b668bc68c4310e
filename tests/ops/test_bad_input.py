"""Wrong input: an error of the right kind that says what, got, why, fix. Nothing crashes, nothing is returned."""

import re

import pytest
import torch

from cosformer import (
    AttentionState,
    attention_reference,
    attention_step,
    attention_weights,
    cosformer_attention,
)
from cosformer.ops.backends import choose_backend
from cosformer.ops.joined import joined_attention


def t(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


GOOD = {"q": t(2, 4, 6, 8), "k": t(2, 2, 6, 8), "v": t(2, 2, 6, 5)}
PACKED = {"q": t(1, 4, 6, 8), "k": t(1, 2, 6, 8), "v": t(1, 2, 6, 5)}
STATE = AttentionState.zeros(2, 2, 8, 5, horizon=20)


def offsets(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


CASES = [
    # ranks and types
    (GOOD | {"q": t(4, 6, 8)}, ValueError, "q has 3 dimensions"),
    (GOOD | {"v": t(2, 2, 6, 5, 1)}, ValueError, "v has 5 dimensions"),
    (GOOD | {"k": [[1.0]]}, TypeError, "k is a list"),
    (GOOD | {"q": GOOD["q"].long()}, TypeError, "q is torch.int64"),
    (GOOD | {"v": GOOD["v"].to(torch.complex64)}, TypeError, "v is torch.complex64"),
    (GOOD | {"k": GOOD["k"].bool()}, TypeError, "k is torch.bool"),
    (GOOD | {"k": GOOD["k"].double()}, TypeError, "one dtype is needed"),
    (GOOD | {"k": t(2, 2, 6, 8, device="meta")}, ValueError, "move them to one device"),
    # shapes
    (GOOD | {"q": t(3, 4, 6, 8)}, ValueError, "batch sizes 3, 2, 2"),
    (GOOD | {"k": t(2, 4, 6, 8)}, ValueError, "k has 4 heads but v has 2"),
    (GOOD | {"v": t(2, 2, 7, 5)}, ValueError, "k has S=6 positions but v has 7"),
    (GOOD | {"q": t(2, 4, 6, 9)}, ValueError, "q has width K=9 but k has 8"),
    (GOOD | {"q": t(2, 3, 6, 8)}, ValueError, "q has 3 heads, k and v have 2"),
    (GOOD | {"q": t(2, 4, 0, 8)}, ValueError, "T=0"),
    (GOOD | {"k": t(2, 2, 0, 8), "v": t(2, 2, 0, 5)}, ValueError, "S=0"),
    (GOOD | {"v": t(2, 2, 6, 0)}, ValueError, "V=0"),
    ({"q": t(0, 4, 6, 8), "k": t(0, 2, 6, 8), "v": t(0, 2, 6, 5)}, ValueError, "B=0"),
    (GOOD | {"q": t(2, 4, 7, 8), "causal": True}, ValueError, "T=7 > S=6"),
    # options
    (GOOD | {"horizon": 5}, ValueError, "horizon=5 but the longest sequence has 6 .* pass horizon>=6"),
    (GOOD | {"horizon": 0}, ValueError, "horizon=0: it counts tokens"),
    (GOOD | {"horizon": -3}, ValueError, "horizon=-3"),
    (GOOD | {"horizon": 8.5}, TypeError, "horizon=8.5 is a float"),
    (GOOD | {"horizon": True}, TypeError, "horizon=True is a bool"),
    (GOOD | {"feature_map": "gelu"}, ValueError, "feature_map='gelu' is unknown: use one of relu"),
    (GOOD | {"backend": "gpu"}, ValueError, "backend='gpu' is unknown: use one of auto"),
    (GOOD | {"eps": 0.0}, ValueError, "eps=0.0"),
    (GOOD | {"eps": 1e-50}, ValueError, "eps=1e-50"),
    (GOOD | {"eps": float("inf")}, ValueError, "eps=inf"),
    (GOOD | {"eps": float("nan")}, ValueError, "eps=nan"),
    (GOOD | {"q": GOOD["q"].to_sparse()}, TypeError, "q is torch.sparse_coo"),
    (GOOD | {"key_mask": [True] * 6}, TypeError, "key_mask is a list"),
    (GOOD | {"state": (1, 2)}, TypeError, "state is a tuple"),
    (PACKED | {"cu_seqlens": [0, 6]}, TypeError, "cu_seqlens is a list"),
    (PACKED | {"cu_seqlens": offsets(0, 6).to("meta")}, ValueError, "cu_seqlens is on meta"),
    (GOOD | {"state": AttentionState.zeros(2, 2, 8, 5, horizon=None)}, ValueError, "state.horizon=None"),
    (GOOD | {"state": AttentionState(sums=STATE.sums, norm=STATE.norm, length=-1, horizon=20)}, ValueError, "=-1"),
    (GOOD | {"state": AttentionState(sums=STATE.sums, norm=STATE.norm, length=torch.tensor([1, 2, 3]), horizon=20)},
     ValueError, "one whole number is needed for each of 2 rows"),
    (GOOD | {"state": AttentionState(sums=STATE.sums, norm=STATE.norm.to("meta"), length=0, horizon=20)}, ValueError,
     "norm: meta"),
    (GOOD | {"return_state": True}, ValueError, "return_state=True needs a horizon"),
    # masks
    (GOOD | {"key_mask": torch.ones(2, 6)}, TypeError, "key_mask is torch.float32: it must be bool"),
    (GOOD | {"key_mask": torch.ones(2, 5).bool()}, ValueError, r"key_mask has shape \(2, 5\)"),
    (GOOD | {"key_mask": torch.ones(2, 1, 6, 6).bool()}, ValueError, "attention_reference takes one"),
    (GOOD | {"key_mask": torch.ones(2, 6, device="meta").bool()}, ValueError, "key_mask is on meta"),
    # packed
    (GOOD | {"cu_seqlens": offsets(0, 6)}, ValueError, "cu_seqlens with B=2"),
    (PACKED | {"cu_seqlens": offsets(0, 3, 3, 6)}, ValueError, "does not increase: entry 1 is 3, entry 2 is 3"),
    (PACKED | {"cu_seqlens": offsets(0, 4, 2, 6)}, ValueError, "does not increase"),
    (PACKED | {"cu_seqlens": offsets(0, 3, 5)}, ValueError, "cu_seqlens ends at 5 but there are 6 tokens"),
    (PACKED | {"cu_seqlens": offsets(0, 3, 9)}, ValueError, "cu_seqlens ends at 9"),
    (PACKED | {"cu_seqlens": offsets(1, 3, 6)}, ValueError, "cu_seqlens starts at 1"),
    (PACKED | {"cu_seqlens": offsets(0)}, ValueError, r"expected \[N \+ 1\] offsets"),
    (PACKED | {"cu_seqlens": torch.tensor([0.0, 6.0])}, TypeError, "offsets are int32 or int64"),
    (PACKED | {"cu_seqlens_k": offsets(0, 6)}, ValueError, "cu_seqlens_k was passed without cu_seqlens"),
    (PACKED | {"cu_seqlens": offsets(0, 6), "cu_seqlens_k": offsets(0, 3, 6)}, ValueError, "1 sequences but"),
    (PACKED | {"cu_seqlens": offsets(0, 2, 6), "horizon": 3}, ValueError, "horizon=3 but the longest sequence has 4"),
    (PACKED | {"cu_seqlens": offsets(0, 4, 6), "cu_seqlens_k": offsets(0, 3, 6), "causal": True}, ValueError,
     "sequence 0 has T=4 queries and S=3 keys"),
    (PACKED | {"cu_seqlens": offsets(0, 6), "state": AttentionState(
        sums=STATE.sums[:1], norm=STATE.norm[:1], length=15, horizon=20)}, ValueError, "6 positions after 15 held"),
    # states
    (GOOD | {"state": AttentionState.zeros(2, 2, 9, 5, horizon=20)}, ValueError, r"need \[B, Hkv, 2, K, V\]"),
    (GOOD | {"state": AttentionState.zeros(1, 2, 8, 5, horizon=20)}, ValueError, r"need \[B, Hkv, 2, K, V\]"),
    (GOOD | {"state": AttentionState.zeros(2, 2, 8, 5, horizon=20, dtype=torch.float64)}, TypeError, "state is torch"),
    (GOOD | {"state": AttentionState.zeros(2, 2, 8, 5, horizon=20, device="meta")}, ValueError, "state is on meta"),
    (GOOD | {"state": STATE, "horizon": 21}, ValueError, "horizon=21 but the state was made with horizon=20"),
    (GOOD | {"state": AttentionState(sums=STATE.sums, norm=STATE.norm, length=15, horizon=20)}, ValueError,
     "horizon=20 but the longest sequence has 6 positions after 15 held by the state"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "kind", "message"), CASES, ids=[c[2] for c in CASES])
def test_refused(arguments: dict, kind: type[Exception], message: str, backend: str) -> None:
    with pytest.raises(kind) as error:
        cosformer_attention(**({"backend": backend} | arguments))
    assert re.search(message, str(error.value)), str(error.value)


def test_the_same_arguments_unbroken_are_fine(backend: str) -> None:
    assert cosformer_attention(**GOOD, backend=backend).shape == (2, 4, 6, 5)
    assert cosformer_attention(**PACKED, cu_seqlens=offsets(0, 2, 6), horizon=4, backend=backend).isfinite().all()
    assert cosformer_attention(**GOOD, state=STATE, horizon=20, backend=backend).isfinite().all()


def test_step_refuses(backend: str) -> None:
    token = {"q": t(2, 4, 1, 8), "k": t(2, 2, 1, 8), "v": t(2, 2, 1, 5)}
    state = AttentionState.zeros(2, 2, 8, 5, horizon=3)
    for _ in range(3):
        attention_step(**token, state=state, backend=backend)
    before = state.clone()
    with pytest.raises(
        ValueError, match="horizon=3 but the longest sequence has 1 positions after 3 held by the state"
    ):
        attention_step(**token, state=state, backend=backend)
    state.length = 0
    for wrong, message in (
        ({"q": t(2, 4, 2, 8), "k": t(2, 2, 2, 8), "v": t(2, 2, 2, 5)}, "takes one token, got T=2"),
        ({"q": t(1, 4, 1, 8), "k": t(1, 2, 1, 8), "v": t(1, 2, 1, 5)}, r"need \[B, Hkv, 2, K, V\]"),
        ({"backend": "gpu"}, "unknown"),
        ({"feature_map": "gelu"}, "unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            attention_step(**(token | {"state": state, "backend": backend} | wrong))
    with pytest.raises(RuntimeError, match="records no gradient"):
        attention_step(**(token | {"q": token["q"].clone().requires_grad_()}), state=state, backend=backend)
    view = AttentionState(sums=t(2, 2, 2, 5, 8).mT, norm=state.norm, length=0, horizon=3)
    with pytest.raises(ValueError, match="contiguous"):
        attention_step(**token, state=view, backend=backend)
    assert torch.equal(state.sums, before.sums)  # a refused step changes nothing


@pytest.mark.parametrize("steps", [0.5, torch.tensor([1.0, 2.0])], ids=["number", "tensor"])
def test_a_state_turns_by_whole_positions(steps: float | torch.Tensor) -> None:
    with pytest.raises(TypeError, match="positions are whole numbers; pass integers"):
        STATE.turned(steps)  # pyright: ignore[reportArgumentType]


def test_compiled_backend_refuses_another_device() -> None:
    with pytest.raises(RuntimeError, match="backend='cpu' cannot run here: the tensors are on meta"):
        choose_backend("cpu", torch.device("meta"))


def test_reference_refuses_what_it_cannot_weigh() -> None:
    for run in (lambda **x: attention_weights(GOOD["q"], GOOD["k"], **x), lambda **x: attention_reference(**GOOD, **x)):
        with pytest.raises(ValueError, match="pass horizon>=6"):
            run(horizon=5)
        with pytest.raises(ValueError, match="feature_map='gelu' is unknown"):
            run(feature_map="gelu")


def test_scratch_beyond_memory_is_an_error_not_a_crash(compiled: None) -> None:
    wide = torch.ones(1).expand(1, 1, 2, 2**20)
    with pytest.raises(MemoryError, match="scratch"):
        cosformer_attention(wide, wide, wide, backend="cpu")


def test_joined_refuses() -> None:
    for arguments, kind, message in [
        (([[1.0]], 2), TypeError, "qkv is a list"),
        ((t(2, 6, 8), 2), ValueError, "qkv has 3 dimensions.* the layout is .B, T, H . 2·Hkv, K."),
        ((t(2, 6, 7, 8), 4), ValueError, "qkv has 7 heads, 4 of them queries"),
        ((t(2, 6, 8, 8), 8), ValueError, "qkv has 8 heads, 8 of them queries"),
        ((t(2, 6, 8, 8), 10), ValueError, "qkv has 8 heads, 10 of them queries"),
        ((t(2, 6, 4, 8), 0), ValueError, "qkv has 4 heads, 0 of them queries"),
        ((t(2, 6, 8, 8), 2), ValueError, "q has 2 heads, k and v have 3"),
        ((t(2, 6, 8, 8).long(), 4), TypeError, "q is torch.int64"),
    ]:
        with pytest.raises(kind, match=message):
            joined_attention(*arguments, horizon=9)
    assert joined_attention(t(2, 6, 8, 8), 4, horizon=9).shape == (2, 4, 6, 8)


def test_forward_mode_is_refused(backend: str) -> None:
    x = torch.rand(1, 1, 4, 3)
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(lambda q: cosformer_attention(q, x, x, backend=backend), (x,), (x,))


def test_the_reference_takes_no_more_than_the_operator() -> None:
    with pytest.raises(TypeError, match=r"q is torch\.int64"):
        attention_reference(GOOD["q"].long(), GOOD["k"].long(), GOOD["v"].long())
    with pytest.raises(ValueError, match="T=7 > S=6"):
        attention_reference(t(2, 4, 7, 8), GOOD["k"], GOOD["v"], causal=True)
    with pytest.raises(TypeError, match=r"attn_mask is torch\.float32"):
        attention_reference(**GOOD, attn_mask=torch.ones(6, 6))


def test_shapes_alone_can_be_asked_on_the_meta_device() -> None:
    x = [t(2, 2, 6, 8, device="meta") for _ in range(3)]
    assert cosformer_attention(*x, causal=True).shape == (2, 2, 6, 8)
