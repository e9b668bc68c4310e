"""attention="rfa", "rfa_gated": an unbiased estimate of softmax over unit vectors; a gate that is its recurrence."""

import math

import pytest
import rival_checks as checks
import torch
import torch.nn.functional as F
from small_models import small_config
from torch import Tensor

from cosformer.rivals.gated import gated_attention
from cosformer.rivals.rfa import rfa_attention, rfa_features

OPTIONS = {"attention_options": {"features": 12}}


def directions(features: int, seed: int, sigma: float = 1.0) -> Tensor:
    return torch.randn(1, features, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * sigma


def test_the_estimate_of_the_kernel_is_unbiased() -> None:
    q, k = (torch.randn(1, 1, 5, 8, dtype=torch.float64) for _ in range(2))
    sigma = 1.3
    close = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    exact = torch.exp(sigma**2 * (close - 1))
    found = torch.stack([
        rfa_features(q, w) @ rfa_features(k, w).mT for w in (directions(16, i, sigma) for i in range(2_000))
    ])  # fmt: skip
    error = (found.mean(0) - exact).abs() / (found.std(0) / math.sqrt(2_000))
    assert error.max() < 5  # of 25 standard errors


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
def test_it_converges_to_softmax_of_unit_vectors(causal: bool) -> None:
    q, k, v = (torch.randn(1, 2, 40, 8, dtype=torch.float64) for _ in range(3))
    unit = (F.normalize(q, dim=-1), F.normalize(k, dim=-1))
    exact = F.scaled_dot_product_attention(*unit, v, is_causal=causal, scale=1.0)

    def error(features: int) -> float:
        gaps = [rfa_attention(q, k, v, directions(features, i), causal=causal) - exact for i in range(6)]
        return torch.stack(gaps).square().mean().sqrt().item()

    few, many = error(64), error(64 * 64)
    assert many < few / 4  # √64 = 8 in the limit
    assert many < 0.03


def recurrence(phi_q: Tensor, phi_k: Tensor, v: Tensor, opening: Tensor) -> Tensor:
    """The definition, a token at a time, one head."""
    s, z, out = torch.zeros(phi_k.shape[1], v.shape[1]).double(), torch.zeros(phi_k.shape[1]).double(), []
    for t in range(len(v)):
        g = torch.sigmoid(opening[t])
        s, z = g * s + (1 - g) * torch.outer(phi_k[t], v[t]), g * z + (1 - g) * phi_k[t]
        out.append(phi_q[t] @ s / (phi_q[t] @ z))
    return torch.stack(out)


def test_the_gated_form_is_its_recurrence() -> None:
    phi_q = torch.rand(2, 4, 150, 6, dtype=torch.float64)
    phi_k, v = (torch.rand(2, 2, 150, n, dtype=torch.float64) for n in (6, 5))
    opening = torch.randn(2, 2, 150, dtype=torch.float64) * 3
    o, sums, norm = gated_attention(phi_q, phi_k, v, opening)
    for b in range(2):
        for h in range(4):
            exact = recurrence(phi_q[b, h], phi_k[b, h // 2], v[b, h // 2], opening[b, h // 2])
            assert checks.gap(o[b, h], exact) < 1e-12
    first, *state = gated_attention(phi_q[:, :, :70], phi_k[:, :, :70], v[:, :, :70], opening[:, :, :70])
    rest, *after = gated_attention(
        phi_q[:, :, 70:], phi_k[:, :, 70:], v[:, :, 70:], opening[:, :, 70:], sums=state[0], norm=state[1]
    )
    assert checks.gap(torch.cat([first, rest], 2), o) < 1e-12
    assert checks.gap(after[0], sums) < 1e-12
    assert checks.gap(after[1], norm) < 1e-12


def test_a_gate_shut_for_long_is_finite() -> None:
    phi = torch.rand(1, 1, 64, 4, requires_grad=True)
    opening = torch.full((1, 1, 64), -200.0)  # log g = −200 a token: exp of the sums is 0, never 0·∞
    o, *_ = gated_attention(phi, phi, torch.rand(1, 1, 64, 4), opening)
    o.sum().backward()
    assert phi.grad is not None
    assert phi.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["rfa", "rfa_gated"])
def test_in_decoders(kind: str) -> None:
    model = checks.decoder(kind, positions="rotary", **OPTIONS)
    checks.check_causality(model)
    checks.check_cache(model)
    checks.check_packed(model)
    for side in ("left", "right"):
        checks.check_padding(model, side)


def test_in_encoders() -> None:
    for side in ("left", "right"):
        checks.check_padding(checks.encoder("rfa", positions="learned", **OPTIONS), side)
    checks.check_looks_both_ways(checks.encoder("rfa", **OPTIONS))
    checks.check_across("rfa", **OPTIONS)


@pytest.mark.parametrize(("kind", "causal"), [("rfa", True), ("rfa", False), ("rfa_gated", True)])
def test_it_trains(kind: str, causal: bool) -> None:
    checks.check_training(kind, causal=causal, **OPTIONS)


def test_a_gate_has_a_direction() -> None:
    with pytest.raises(ValueError, match="use attention='rfa' in an encoder"):
        small_config(attention="rfa_gated", causal=False)
    with pytest.raises(ValueError, match="has no cross attention"):
        small_config(attention="rfa_gated", is_encoder_decoder=True)
