"""attention="bigbird": blocks gathered and attended equal softmax under the mask they describe."""

import pytest
import rival_checks as checks
import torch
import torch.nn.functional as F
from small_models import small_config

from cosformer.rivals import bigbird_attention
from cosformer.rivals.bigbird import seen_blocks

OPTIONS = {"attention_options": {"block": 4, "random": 2}}


@pytest.mark.parametrize("length", [1, 7, 8, 40, 83])
def test_it_equals_softmax_under_its_mask(length: int) -> None:
    q = torch.randn(3, 4, length, 8, dtype=torch.float64)
    k, v = (torch.randn(3, 2, length, n, dtype=torch.float64) for n in (8, 5))
    lengths = torch.tensor([length, (length + 1) // 2, 1])
    real = torch.arange(length) < lengths[:, None]
    seen = seen_blocks(lengths, -(-length // 4), 4, block=4, random=2, seed=3)
    mask = seen.repeat_interleave(4, 2).repeat_interleave(4, 3)[:, :, :length, :length] & real[:, None, None]
    mask = mask | ~mask.any(-1, keepdim=True)
    exact = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    got = bigbird_attention(q, k, v, key_mask=real, block=4, random=2, seed=3)
    rows = real[:, None].expand(-1, 4, -1)
    assert checks.gap(got[rows], exact[rows]) < 1e-13


def test_a_block_sees_three_near_three_random_and_two_global_ones() -> None:
    seen = seen_blocks(torch.tensor([30 * 64 - 5]), 30, 4, block=64, random=3, seed=0)[0]
    inner = seen[:, 2:-2]  # neighbours of these are not global themselves
    assert (inner.sum(-1) == 3 + 3 + 2).all()
    assert seen[:, :, 0].all()
    assert seen[:, :, -1].all()
    assert seen[:, 0].all()
    assert seen[:, -1].all()
    n = torch.arange(30)
    assert seen[:, (n[:, None] - n).abs() <= 1].all()
    assert len({tuple(head.flatten().tolist()) for head in seen}) == 4  # heads draw apart
    free = inner & ((n[2:-2, None] - n).abs() > 1)
    free[..., 0] = free[..., -1] = False
    hits = free.sum((0, 1)).float()[2:-2]
    assert hits.min() > 0  # 312 draws over 26 blocks


def test_what_a_row_sees_does_not_depend_on_padding() -> None:
    short = seen_blocks(torch.tensor([37]), 10, 2, block=4, random=2, seed=0)
    long = seen_blocks(torch.tensor([37, 80]), 20, 2, block=4, random=2, seed=0)
    assert torch.equal(long[:1, :, :10, :10], short)
    assert not long[0, :, :, 10:].any()


def test_in_models() -> None:
    model = checks.encoder("bigbird", positions="learned", **OPTIONS)
    for side in ("left", "right"):
        checks.check_padding(model, side)
    checks.check_packed(model)
    checks.check_looks_both_ways(model)
    checks.check_training("bigbird", causal=False, **OPTIONS)


def test_refused() -> None:
    with pytest.raises(ValueError, match="cannot be causal: its random and global blocks lie ahead"):
        small_config(attention="bigbird")
    with pytest.raises(ValueError, match="block=0"):
        small_config(attention="bigbird", causal=False, attention_options={"block": 0})
