"""attention="reformer": rounds of hashing that together meet full attention; each by its definition."""

import pytest
import rival_checks as checks
import torch
import torch.nn.functional as F
from small_models import small_config, tokens
from torch import Tensor

from cosformer.rivals import reformer_attention

OPTIONS = {"attention_options": {"rounds": 3, "buckets": 4, "chunk": 6}}


def over(x: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Softmax of shared queries and unit keys over `seen` [.., T, T], oneself only where nothing else is."""
    scores = x @ F.normalize(x, dim=-1).mT * x.shape[-1] ** -0.5
    same = torch.eye(x.shape[2], dtype=torch.bool)
    others = seen & ~same
    return scores.masked_fill(~(others | (same & ~others.any(-1, keepdim=True))), -torch.inf).softmax(-1) @ v


def met(x: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    """By loops: who is in whose bucket within reach, in any round. x [T,K], rotations [R,K,N/2]."""
    seen = torch.zeros(len(x), len(x), dtype=torch.bool)
    for w in rotations:
        bucket = torch.cat([x @ w, -(x @ w)], -1).argmax(-1).tolist()
        line = sorted(range(len(x)), key=lambda i: (bucket[i], i))
        place = {token: n // chunk for n, token in enumerate(line)}
        for i in range(len(x)):
            for j in range(len(x)):
                seen[i, j] |= bucket[i] == bucket[j] and place[i] - place[j] in (0, 1)
    return seen


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
def test_it_is_softmax_over_all_that_met(causal: bool) -> None:
    x, v = (torch.randn(2, 2, 29, n, dtype=torch.float64) for n in (8, 5))
    rotations = torch.randn(2, 3, 8, 2, dtype=torch.float64)
    seen = torch.stack([torch.stack([met(x[b, h], rotations[h], 6) for h in range(2)]) for b in range(2)])
    assert 0.1 < seen.double().mean() < 0.9
    exact = over(x, v, seen.tril() if causal else seen)
    assert checks.gap(reformer_attention(x, v, rotations, causal=causal, chunk=6), exact) < 1e-12


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
def test_with_enough_rounds_it_meets_full_attention(causal: bool) -> None:
    x, v = (torch.randn(1, 1, 24, 8, dtype=torch.float64) for _ in range(2))
    everyone = torch.ones(24, 24, dtype=torch.bool)
    exact = over(x, v, everyone.tril() if causal else everyone)
    rotations = torch.randn(1, 90, 8, 2, dtype=torch.float64)

    def error(rounds: int) -> float:
        return checks.gap(reformer_attention(x, v, rotations[:, :rounds], causal=causal, chunk=12), exact)

    found = [error(rounds) for rounds in (1, 8, 90)]
    assert found[0] > found[1] > found[2]
    assert found[2] < 0.1 * found[0]  # nearly opposite vectors, which weigh least, are the last to meet


def test_nothing_flows_from_later_tokens() -> None:
    x, v = (torch.randn(1, 1, 40, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    o = reformer_attention(x, v, torch.randn(1, 3, 8, 2), causal=True, chunk=6)
    for gradient in torch.autograd.grad(o[:, :, :20].square().sum(), (x, v)):
        assert (gradient[:, :, 20:] == 0).all()
        assert (gradient[:, :, :20] != 0).any()


def test_in_models() -> None:
    model = checks.decoder("reformer", positions="rotary", **OPTIONS)
    checks.check_packed(model)
    for side in ("left", "right"):
        checks.check_padding(model, side)
        checks.check_padding(checks.encoder("reformer", positions="learned", **OPTIONS), side)
    checks.check_looks_both_ways(checks.encoder("reformer", **OPTIONS))
    text = model.generate(tokens(2, 9), max_new_tokens=4, do_sample=False, use_cache=False)
    assert text.shape == (2, 13)
    for causal in (True, False):
        checks.check_training("reformer", causal=causal, **OPTIONS)


def test_who_is_in_reach_depends_on_later_tokens_unless_a_chunk_holds_all() -> None:
    """As published: sorting puts tokens to come between those that were there, so chunks are cut elsewhere."""
    options = {"rounds": 3, "buckets": 4}
    checks.check_causality(checks.decoder("reformer", attention_options={**options, "chunk": 45}))
    with pytest.raises(AssertionError):
        checks.check_causality(checks.decoder("reformer", attention_options={**options, "chunk": 6}))


def test_refused() -> None:
    model = checks.decoder("reformer", **OPTIONS)
    cache = model(tokens(1, 9), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="pass use_cache=False"):
        model(tokens(1, 1), past_key_values=cache)
    with pytest.raises(ValueError, match="use an even number"):
        small_config(attention="reformer", attention_options={"buckets": 3})
