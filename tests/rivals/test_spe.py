"""spe="sine" and "gated": codes whose covariance is the wanted kernel of relative positions."""

import math
from typing import Any

import pytest
import rival_checks as checks
import torch
from small_models import small_config, tokens

from cosformer.models.layout import Layout
from cosformer.rivals.spe import encode, sine_kernel


@pytest.mark.parametrize("gated", [False, True], ids=["sine", "gated"])
def test_the_covariance_is_the_wanted_kernel(gated: bool) -> None:
    d, j, r, t = 3, 2, 16, 12
    q, k = (torch.randn(1, 1, t, d, dtype=torch.float64) for _ in range(2))
    f, theta, gains = (torch.rand(1, d, j, dtype=torch.float64) for _ in range(3))
    gates = torch.rand(1, d, dtype=torch.float64) if gated else None
    places = torch.arange(t, dtype=torch.float64)[None]
    draws, found = 3_000, []
    for i in range(draws):
        noise = torch.randn(1, d, 2 * j + 1, r, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        coded_q = encode(q, places, noise, f, theta, gains, gates)
        found.append((coded_q @ encode(k, places, noise, f, None, gains, gates).mT)[0, 0])
    kernel = sine_kernel(places[0][:, None] - places[0], f[0], theta[0], gains[0], None if gates is None else gates[0])
    exact = torch.einsum("td,sd,tsd->ts", q[0, 0], k[0, 0], kernel) * (r / d) ** 0.5  # softmax's 1/√R makes it 1/√D
    all_found = torch.stack(found)
    error = (all_found.mean(0) - exact).abs() / (all_found.std(0) / math.sqrt(draws))
    assert error.max() < 5  # of 144 standard errors


def test_the_kernel_is_relative_and_the_gate_mixes_in_a_constant() -> None:
    f, theta, gains = (torch.rand(3, 2, dtype=torch.float64) for _ in range(3))
    apart = torch.arange(-5.0, 6.0, dtype=torch.float64)
    plain = sine_kernel(apart, f, theta, gains, None)
    assert plain.shape == (11, 3)
    assert (sine_kernel(apart, f, theta, gains, torch.ones(3)) == 1).all()
    assert torch.equal(sine_kernel(apart, f, theta, gains, torch.zeros(3)), plain)


KINDS = ["linear", "cosformer_nocos", "performer", "rfa", "rfa_gated"]


@pytest.mark.parametrize("spe", ["sine", "gated"])
@pytest.mark.parametrize("kind", KINDS)
def test_in_models(kind: str, spe: str) -> None:
    options: dict[str, Any] = {
        "attention_options": {"spe": spe, "spe_realisations": 8, "spe_sines": 2}, "positions": "none",
    }  # fmt: skip
    model = checks.decoder(kind, **options)
    checks.check_causality(model)
    checks.check_cache(model)
    checks.check_packed(model)
    checks.check_padding(model, "left")
    checks.check_padding(model, "right")
    checks.check_training(kind, causal=True, **options)
    if kind != "rfa_gated":
        encoder = checks.encoder(kind, **options)
        checks.check_padding(encoder, "left")
        checks.check_looks_both_ways(encoder)
    ids = tokens(2, 20)
    with torch.no_grad():
        order = model(ids).logits[:, -1] - model(torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], 1)).logits[:, -1]
        assert order.abs().max() > 1e-3  # without positions, a last token sees a bag of words


def test_performer_with_many_realisations_is_softmax_of_the_relative_kernel() -> None:
    """All of it: codes, their scale, features. Directions and noise are many, so the estimate is near its mean."""
    model = checks.decoder(
        "performer", attention_options={"spe": "sine", "spe_realisations": 512, "spe_sines": 1, "features": 4_096},
        num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=4, hidden_size=8, positions="none",
    )  # fmt: skip
    kind = model.model.layers[0].self_attn.kind
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 9, 4, dtype=torch.float64) for _ in range(2))
    v = torch.eye(9, dtype=torch.float64)[None, None]
    places = torch.arange(9)[None]
    with torch.no_grad():
        kind.positions.spe.frequencies.zero_()  # a quarter of a turn at each place, so that places matter
        got = kind.attend(q, k, v, Layout(places=places), None)[0, 0]
        spe = kind.positions.spe
        apart = (places[0][:, None] - places[0]).double()
        kernel = sine_kernel(apart, spe.frequencies[0].sigmoid() / 2, spe.phases[0], spe.gains[0], None)
        scores = torch.einsum("td,sd,tsd->ts", q[0, 0], k[0, 0], kernel) / 4**0.5
        exact = scores.masked_fill(apart < 0, -torch.inf).softmax(-1)
    assert (got - exact).abs().mean() < 0.02
    plain = (q[0, 0] @ k[0, 0].mT / 4**0.5).masked_fill(apart < 0, -torch.inf).softmax(-1)
    assert (plain - exact).abs().mean() > 0.04  # what it would be without positions, or with codes that fail


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"is_encoder_decoder": True}, "spe='gated' has no cross attention"),
        ({"attention_options": {"spe": "gated", "spe_sines": 0}}, "spe_sines=0: use at least 1"),
        ({"attention_options": {"spe": "sines"}}, "use none, sine or gated"),
        ({"attention_options": {"spe_sines": 4}}, "spe_sines with spe='none'"),
        ({"attention_options": {"seed": -1}}, "from 0 to 65,535"),
    ],
)
def test_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small_config(**{"attention": "linear", "attention_options": {"spe": "gated"}, **options})
