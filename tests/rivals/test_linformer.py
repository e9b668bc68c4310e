"""attention="linformer": softmax over mixtures; with identity projections, softmax itself."""

import pytest
import rival_checks as checks
import torch
import torch.nn.functional as F
from small_models import small_config, tokens

from cosformer.rivals import linformer_attention

OPTIONS = {"attention_options": {"rank": 16}}


def test_with_identity_projections_it_is_softmax() -> None:
    q = torch.randn(2, 4, 50, 8, dtype=torch.float64)
    k, v = (torch.randn(2, 2, 50, n, dtype=torch.float64) for n in (8, 5))
    same = torch.eye(50, dtype=torch.float64)
    exact = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert checks.gap(linformer_attention(q, k, v, same, same), exact) < 1e-14
    other = same.roll(1, 0)  # keys mixed otherwise than values
    assert checks.gap(linformer_attention(q, k, v, same, other), exact) > 0.1


def test_in_a_model_identity_projections_give_the_softmax_model() -> None:
    ours = checks.encoder("linformer", horizon=40, attention_options={"rank": 40})
    softmax = checks.encoder("softmax", horizon=40)
    weights = ours.state_dict()
    for name in weights:
        if "mix_" in name:
            weights[name].copy_(torch.eye(40))
    softmax.load_state_dict({name: x for name, x in weights.items() if "mix_" not in name})
    with torch.no_grad():
        assert checks.gap(ours(tokens(2, 40)).logits, softmax(tokens(2, 40)).logits) < checks.TIGHT


def test_in_models() -> None:
    model = checks.encoder("linformer", positions="learned", **OPTIONS)
    for side in ("left", "right"):
        checks.check_padding(model, side)
    checks.check_packed(model)
    checks.check_looks_both_ways(model)
    checks.check_training("linformer", causal=False, attention_options={"rank": 16}, horizon=40)


def test_refused() -> None:
    with pytest.raises(ValueError, match="cannot be causal: each of its mixtures holds keys of the whole sequence"):
        small_config(attention="linformer", **OPTIONS)
    with pytest.raises(ValueError, match="cannot be causal"):
        small_config(attention="linformer", is_encoder_decoder=True, **OPTIONS)
    with pytest.raises(ValueError, match="more mixtures than keys"):
        small_config(attention="linformer", causal=False)
    with pytest.raises(ValueError, match="the model's horizon is 96"):
        checks.encoder("linformer", **OPTIONS)(tokens(1, 97))
    x = torch.randn(1, 1, 9, 4)
    with pytest.raises(ValueError, match="a weight for every place"):
        linformer_attention(x, x, x, torch.eye(8), torch.eye(8))
