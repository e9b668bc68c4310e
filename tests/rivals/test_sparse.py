"""attention="sparse": two parts normalised together equal softmax under the dense mask of the pattern."""

from typing import Any

import pytest
import rival_checks as checks
import torch
import torch.nn.functional as F
from small_models import small_config

from cosformer.rivals import sparse_attention
from cosformer.rivals.sparse import Pattern, SparseOptions, sparse_mask

PATTERNS: tuple[Pattern, ...] = ("strided", "fixed")


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("length", [1, 6, 7, 40, 53])
def test_it_equals_softmax_under_the_dense_mask(pattern: Pattern, causal: bool, length: int) -> None:
    q = torch.randn(2, 4, length, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 2, length, n, dtype=torch.float64, requires_grad=True) for n in (8, 5))
    real = torch.arange(length) < torch.tensor([length, (length + 1) // 2])[:, None]
    place = torch.arange(length)
    mask = sparse_mask(place, place, pattern=pattern, stride=7, summary=2, causal=causal) & real[:, None, None]
    mask = mask | ~mask.any(-1, keepdim=True)
    exact = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    got = sparse_attention(q, k, v, causal=causal, pattern=pattern, stride=7, summary=2, key_mask=real)
    rows = real[:, None].expand(-1, 4, -1)
    assert checks.gap(got[rows], exact[rows]) < 1e-13
    found, wanted = (torch.autograd.grad(o[rows].square().sum(), (q, k, v)) for o in (got, exact))
    assert all(checks.gap(a, b) < 1e-11 for a, b in zip(found, wanted, strict=True))


def test_the_patterns_are_those_of_the_paper() -> None:
    place = torch.arange(12)
    strided = sparse_mask(place, place, pattern="strided", stride=4, causal=True)
    assert strided[11].nonzero().flatten().tolist() == [3, 7, 8, 9, 10, 11]
    fixed = sparse_mask(place, place, pattern="fixed", stride=4, summary=1, causal=True)
    assert fixed[10].nonzero().flatten().tolist() == [3, 7, 8, 9, 10]
    assert fixed[5].nonzero().flatten().tolist() == [3, 4, 5]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_in_models(pattern: Pattern) -> None:
    options: dict[str, Any] = {"attention_options": {"pattern": pattern, "stride": 5, "summary": 2}}
    model = checks.decoder("sparse", positions="rotary", **options)
    checks.check_causality(model)
    checks.check_cache(model)
    checks.check_packed(model)
    for side in ("left", "right"):
        checks.check_padding(model, side)
        checks.check_padding(checks.encoder("sparse", positions="learned", **options), side)
    checks.check_looks_both_ways(checks.encoder("sparse", **options))
    for causal in (True, False):
        checks.check_training("sparse", causal=causal, **options)


def test_the_summary_follows_a_short_stride_and_is_of_the_fixed_pattern_alone() -> None:
    assert [SparseOptions(stride=stride).summarised for stride in (128, 8, 5)] == [8, 8, 5]
    assert SparseOptions(stride=128, summary=3).summarised == 3
    for pattern in PATTERNS:
        small_config(attention="sparse", attention_options={"stride": 5, "pattern": pattern})
    small_config(attention="sparse", attention_options={"stride": 5, "summary": 9})
    q, k, v = (torch.randn(1, 2, 17, 8) for _ in range(3))
    wanted = sparse_attention(q, k, v, pattern="fixed", stride=5, summary=5)
    assert torch.equal(sparse_attention(q, k, v, pattern="fixed", stride=5), wanted)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pattern": "dots"}, "use strided or fixed"),
        ({"stride": 0}, "stride=0"),
        ({"pattern": "fixed", "summary": 200}, "from 1 to the"),
    ],
)
def test_wrong_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small_config(attention="sparse", attention_options=options)
