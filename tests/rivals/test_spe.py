"""attention="linear_spe": codes whose covariance is the wanted kernel of relative positions."""

import math
from typing import Any

import pytest
import rival_checks as checks
import torch
from small_models import small_config, tokens

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
    exact = torch.einsum("td,sd,tsd->ts", q[0, 0], k[0, 0], kernel)
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


@pytest.mark.parametrize("gated", [False, True], ids=["sine", "gated"])
def test_in_models(gated: bool) -> None:
    options: dict[str, Any] = {
        "attention_options": {"gated": gated, "realisations": 8, "sines": 2}, "positions": "none",
    }  # fmt: skip
    model = checks.decoder("linear_spe", **options)
    checks.check_causality(model)
    checks.check_packed(model)
    for side in ("left", "right"):
        checks.check_padding(model, side)
        checks.check_padding(checks.encoder("linear_spe", **options), side)
    checks.check_looks_both_ways(checks.encoder("linear_spe", **options))
    for causal in (True, False):
        checks.check_training("linear_spe", causal=causal, **options)
    ids = tokens(2, 20)
    with torch.no_grad():
        order = model(ids).logits[:, -1] - model(torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], 1)).logits[:, -1]
        assert order.abs().max() > 1e-3  # without positions, a last token sees a bag of words
        cache, got = None, []
        for piece in ids.split([12, 5, 1, 1, 1], 1):
            out = model(piece, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            got.append(out.logits)
        assert checks.gap(torch.cat(got, 1), model(ids, use_cache=False).logits) < checks.TIGHT
    with pytest.raises(ValueError, match="places count real tokens"):
        model(ids[:, :1], attention_mask=torch.ones(2, 21), past_key_values=cache)


def test_refused() -> None:
    with pytest.raises(ValueError, match="has no cross attention"):
        small_config(attention="linear_spe", is_encoder_decoder=True)
    with pytest.raises(ValueError, match="use at least 1"):
        small_config(attention="linear_spe", attention_options={"sines": 0})
