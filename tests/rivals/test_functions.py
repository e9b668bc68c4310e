"""The rivals as functions: the operator's masks and packing, and what they refuse with which words."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rival_checks import gap
from torch import Tensor

from cosformer.nn.positions import rotary_tables
from cosformer.rivals import (
    bigbird_attention,
    linformer_attention,
    performer_attention,
    reformer_attention,
    rfa_attention,
    rotated_attention,
    sparse_attention,
)

Attend = Callable[..., Tensor]
HEADS, KEYS, WIDTH = 4, 2, 8


def weight(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


MIX, TURNS = weight(6, 40), weight(HEADS, 3, WIDTH, 2)


def reformer(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Of q alone, which is its key too; with as many values as queries."""
    return reformer_attention(q, v.repeat_interleave(HEADS // KEYS, 1), TURNS.to(q), chunk=4, **options)


def linformer(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return linformer_attention(q, k, v, MIX.to(q), MIX.to(q), **options)


def bigbird(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return bigbird_attention(q, k, v, block=4, random=1, **options)


def strided(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return sparse_attention(q, k, v, stride=5, **options)


def fixed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return sparse_attention(q, k, v, pattern="fixed", stride=5, summary=2, **options)


CASES: dict[str, tuple[Attend, dict[str, Any]]] = {
    "strided": (strided, {}),
    "strided-causal": (strided, {"causal": True}),
    "fixed-causal": (fixed, {"causal": True}),
    "bigbird": (bigbird, {}),
    "linformer": (linformer, {}),
    "reformer": (reformer, {}),
}


def inputs(batch: int = 2, length: int = 31, grad: bool = False) -> list[Tensor]:
    shapes = (HEADS, WIDTH), (KEYS, WIDTH), (KEYS, 5)
    return [torch.randn(batch, h, length, w, dtype=torch.float64, requires_grad=grad) for h, w in shapes]


def mask_of(name: str, length: int = 31) -> Tensor:
    place = torch.arange(length)
    rows = {
        "left": [place >= 9, place >= 0],
        "right": [place < 20, place < 1],
        "holes": [place % 3 != 1, (place > 4) & (place % 7 != 0)],
    }
    return torch.stack(rows[name])


@pytest.mark.parametrize("name", ["left", "right", "holes"])
@pytest.mark.parametrize("case", CASES)
def test_masked_tokens_vanish_whatever_they_hold(case: str, name: str) -> None:
    attend, options = CASES[case]
    x, mask = inputs(grad=True), mask_of(name)
    spoilt = [y.masked_fill(~mask[:, None, :, None], torch.nan) for y in x]
    if case == "linformer":  # its queries need not be the tokens of its keys, so the mask is not theirs
        spoilt[0] = x[0]
    got = attend(*spoilt, key_mask=mask, **options)
    alone = [
        attend(*(y[i : i + 1, :, row] for y in x), **options)[0] for i, row in enumerate(mask)
    ]  # each row without what is masked
    found = [got[i][:, row] for i, row in enumerate(mask)]
    assert all(gap(a, b) < 1e-12 for a, b in zip(found, alone, strict=True))
    gradients = [
        torch.autograd.grad(torch.cat([o.flatten() for o in outs]).square().sum(), x, allow_unused=True)
        for outs in (found, alone)
    ]
    pairs = [(a, b) for a, b in zip(*gradients, strict=True) if a is not None]
    assert len(pairs) == (2 if case == "reformer" else 3)
    assert all(gap(a, b) < 1e-11 for a, b in pairs)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("case", CASES)
def test_packed_sequences_do_not_meet(case: str, masked: bool) -> None:
    attend, options = CASES[case]
    x, bounds = inputs(batch=1), (0, 12, 13, 31)
    mask = torch.arange(31)[None] % 5 != 3 if masked else None
    got = attend(*x, key_mask=mask, cu_seqlens=torch.tensor(bounds), **options)
    for i, j in itertools.pairwise(bounds):
        real = slice(None) if mask is None else mask[0, i:j]
        alone = attend(*(y[:, :, i:j] for y in x), key_mask=None if mask is None else mask[:, i:j], **options)
        assert gap(got[:, :, i:j][:, :, real], alone[:, :, real]) < 1e-12


def test_linformer_queries_may_be_others_than_its_keys() -> None:
    (q, _, _), (_, k, v) = inputs(length=7), inputs()
    mask = mask_of("holes")
    got = linformer(q, k, v, key_mask=mask)
    for i, row in enumerate(mask):
        assert gap(got[i : i + 1], linformer(q[i : i + 1], k[i : i + 1, :, row], v[i : i + 1, :, row])) < 1e-13


@pytest.mark.parametrize("case", CASES)
def test_it_compiles_whole_with_a_mask(case: str) -> None:
    attend, options = CASES[case]
    x, mask = inputs(), mask_of("holes")
    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="eager")(*x, key_mask=mask, **options)
    assert gap(compiled, attend(*x, key_mask=mask, **options)) == 0


@pytest.mark.parametrize("case", CASES)
def test_the_output_has_the_dtype_of_the_values(case: str) -> None:
    attend, options = CASES[case]
    assert attend(*(y.bfloat16() for y in inputs()), **options).dtype == torch.bfloat16


Q, K, V = inputs()
TABLES = rotary_tables(torch.arange(31)[None], WIDTH, 10_000.0, torch.float64)
SAME = "so queries and keys must be of the same tokens"
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "pattern": (lambda: sparse_attention(Q, K, V, pattern="foo"), "pattern='foo' is unknown"),  # pyright: ignore
    "stride": (lambda: sparse_attention(Q, K, V, stride=0), "stride=0: it counts places"),
    "stride-half": (lambda: sparse_attention(Q, K, V, stride=2.5), "stride=2.5 is a float"),  # pyright: ignore
    "summary": (lambda: sparse_attention(Q, K, V, pattern="fixed", stride=4, summary=5), "from 1 to the stride"),
    "path": (lambda: sparse_attention(Q, K, V, path="fast"), "path='fast' is unknown"),
    "sparse-lengths": (lambda: sparse_attention(Q[:, :, 1:], K, V), SAME),
    "sparse-heads": (lambda: sparse_attention(Q[:, :3], K, V), "must be a multiple of the second"),
    "sparse-width": (lambda: sparse_attention(Q, K[..., 1:], V), "queries meet keys in one space"),
    "sparse-dims": (lambda: sparse_attention(Q[0], K, V), "the layout is [B, H, T, K]"),
    "sparse-mask-shape": (lambda: sparse_attention(Q, K, V, key_mask=mask_of("left", 30)), "one entry per key"),
    "sparse-rows": (lambda: sparse_attention(Q, K, V, cu_seqlens=torch.tensor([0, 31])), "cu_seqlens with B=2"),
    "sparse-offsets": (
        lambda: sparse_attention(Q[:1], K[:1], V[:1], cu_seqlens=torch.tensor([0, 30])),
        "cu_seqlens ends at 30 but there are 31 tokens",
    ),
    "block": (lambda: bigbird_attention(Q, K, V, block=0), "block=0: it counts tokens"),
    "random": (lambda: bigbird_attention(Q, K, V, random=-1), "random=-1: it counts blocks"),
    "seed": (lambda: bigbird_attention(Q, K, V, seed=-1), "seed=-1: use a whole number from 0 to 65,535"),
    "bigbird-causal": (
        lambda: bigbird_attention(Q, K, V, causal=True),
        "bigbird cannot be causal: its random and global blocks lie ahead",
    ),
    "bigbird-lengths": (lambda: bigbird_attention(Q, K[:, :, 1:], V[:, :, 1:]), SAME),
    "bigbird-heads": (lambda: bigbird_attention(Q[:, :3], K, V), "must be a multiple of the second"),
    "linformer-causal": (
        lambda: linformer_attention(Q, K, V, MIX, MIX, causal=True),
        "linformer cannot be causal: each of its mixtures holds keys of the whole sequence",
    ),
    "linformer-ranks": (lambda: linformer_attention(Q, K, V, MIX, MIX[1:]), "make them of one shape"),
    "linformer-widths": (lambda: linformer_attention(Q, K, V, MIX, MIX[:, 1:]), "make them of one shape"),
    "linformer-mixtures": (lambda: linformer_attention(Q, K, V, MIX[0], MIX[0]), "mix_k has shape (40,): it is [r, M]"),
    "linformer-length": (lambda: linformer_attention(Q, K, V, MIX[:, :30], MIX[:, :30]), "a weight for every place"),
    "linformer-packed": (
        lambda: linformer_attention(Q[:1, :, 1:], K[:1], V[:1], MIX, MIX, cu_seqlens=torch.tensor([0, 30])),
        SAME,
    ),
    "chunk": (lambda: reformer_attention(Q, Q, TURNS, chunk=0), "chunk=0: use at least 1"),
    "reformer-values": (lambda: reformer_attention(Q, V, TURNS), "k has 4 heads but v has 2"),
    "rotations-heads": (lambda: reformer_attention(Q, Q, TURNS[1:]), "rotations has 3 heads but x has 4"),
    "rotations-width": (
        lambda: reformer_attention(Q, Q, TURNS[:, :, 1:]),
        "rotations is for heads of width K=7, but x has 8",
    ),
    "rotations-dims": (lambda: reformer_attention(Q, Q, TURNS[0]), "it is [H, R, K, N/2]"),
    "performer-width": (
        lambda: performer_attention(Q, K, V, weight(16, 7)),
        "projection is for heads of width K=7, but q has 8",
    ),
    "performer-heads": (lambda: performer_attention(Q[:, :3], K, V, weight(16, 8)), "must be a multiple of the second"),
    "performer-mask": (
        lambda: performer_attention(Q, K, V, weight(16, 8), key_mask=mask_of("left", 30)),
        "one entry per key",
    ),
    "rfa-heads": (
        lambda: rfa_attention(Q, K, V, weight(3, 16, 8)),
        "directions has 3 heads but k has 2: draw some for each key head",
    ),
    "rfa-dims": (lambda: rfa_attention(Q, K, V, weight(16, 8)), "it is [Hkv or 1, D, K]"),
    "rotated-tables": (
        lambda: rotated_attention(Q[:, :2, 1:], K, V, TABLES),
        "a turn for every place and feature",
    ),
}  # fmt: skip
WRONG_TYPE: dict[str, tuple[Callable[[], object], str]] = {
    "mask": (lambda: sparse_attention(Q, K, V, key_mask=torch.ones(2, 31)), "it must be bool"),
    "list": (lambda: bigbird_attention([1], K, V), "q is a list: pass a torch.Tensor"),  # pyright: ignore
    "dtypes": (lambda: linformer_attention(Q, K.float(), V, MIX, MIX), "one dtype is needed"),
    "whole-mixtures": (lambda: linformer_attention(Q, K, V, MIX.long(), MIX), "mix_k is torch.int64"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case: str) -> None:
    call, words = BAD[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


@pytest.mark.parametrize("case", WRONG_TYPE)
def test_refused_by_type(case: str) -> None:
    call, words = WRONG_TYPE[case]
    with pytest.raises(TypeError, match=re.escape(words)):
        call()


def test_a_compiled_function_refuses_what_it_refuses_otherwise() -> None:
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="pattern='foo' is unknown"):
        torch.compile(lambda: BAD["pattern"][0](), fullgraph=True, backend="eager")()
