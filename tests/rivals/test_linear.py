"""attention="linear" and "cosformer_nocos": φ(q)·φ(k) and nothing else, on our kernels."""

import pytest
import rival_checks as checks
import torch
import torch.nn.functional as F
from comparing import assert_as_good_as_eager, assert_rounding_only

from cosformer.models import CosformerConfig
from cosformer.rivals import linear_attention
from cosformer.rivals.states import NO_TURN

PHI = {"elu1": lambda x: F.elu(x) + 1, "relu": F.relu}


def by_definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, name: str) -> torch.Tensor:
    w = PHI[name](q) @ PHI[name](k).mT
    w = w.tril() if causal else w
    return w @ v / w.sum(-1, keepdim=True).clamp(min=1e-6)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("name", list(PHI))
def test_it_is_the_quadratic_sum_without_a_cosine(causal: bool, name: str, backend: str) -> None:
    q, k = (torch.randn(2, 3, 1100, 17, dtype=torch.float64) for _ in range(2))
    v = torch.randn(2, 3, 1100, 9, dtype=torch.float64)
    got = linear_attention(q, k, v, causal=causal, feature_map=name, backend=backend)
    exact = by_definition(q, k, v, causal, name)
    assert_rounding_only(got, exact, terms=1100, size=v.abs().max().item())
    low = [x.float() for x in (q, k, v)]
    got = linear_attention(*low, causal=causal, feature_map=name, backend=backend)
    eager = by_definition(*low, causal, name)
    exact = by_definition(*(x.double() for x in low), causal, name)
    assert_as_good_as_eager(got, eager, exact, size=4.0, factor=2)


def test_a_horizon_that_turns_would_be_seen() -> None:
    from cosformer import cosformer_attention

    q, k, v = (torch.randn(1, 1, 900, 8, dtype=torch.float64) for _ in range(3))
    exact = by_definition(q, k, v, True, "elu1")
    turned = cosformer_attention(q, k, v, causal=True, horizon=10**6, feature_map="elu1")
    with pytest.raises(AssertionError):
        assert_rounding_only(turned, exact, terms=900, size=4.0)


def test_the_cosine_is_one_at_any_distance_that_fits_a_machine() -> None:
    from cosformer.ops.features import phases

    cos, sin = phases(10**9, 10**9 + 3, torch.pi / (2 * NO_TURN), torch.empty(0, dtype=torch.float64))
    assert (cos == 1).all()
    assert (sin.abs() < 1e-9).all()


KINDS = ["linear", "cosformer_nocos"]


@pytest.mark.parametrize("kind", KINDS)
def test_in_models(kind: str) -> None:
    model = checks.decoder(kind, positions="rotary")
    checks.check_causality(model)
    checks.check_cache(model)
    checks.check_packed(model)
    for side in ("left", "right"):
        checks.check_padding(model, side)
        checks.check_padding(checks.encoder(kind, positions="learned"), side)
    checks.check_looks_both_ways(checks.encoder(kind))
    checks.check_across(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
def test_it_trains(kind: str, causal: bool) -> None:
    checks.check_training(kind, causal=causal)


def test_length_has_no_bound() -> None:
    config = CosformerConfig(attention="linear", horizon=8, positions="none")
    assert not config.has_longest
    assert config.layer_types == ["cosformer_attention"] * 8


def test_nocos_differs_from_cosformer_by_the_cosine_alone() -> None:
    """Over a short distance the cosine is nearly 1: with a long horizon the two models agree, with a short one not."""
    ids = checks.tokens(1, 30)
    plain = checks.decoder("cosformer_nocos", positions="none")
    for horizon, near in ((10**9, True), (30, False)):
        ours = checks.decoder("cosformer", positions="none", horizon=horizon)
        ours.load_state_dict(plain.state_dict())
        with torch.no_grad():
            assert (checks.gap(ours(ids).logits, plain(ids).logits) < checks.TIGHT) == near
