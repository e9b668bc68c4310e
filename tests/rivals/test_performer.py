"""attention="performer": an unbiased estimate of softmax that converges, and a model like any other."""

import functools
import math

import pytest
import rival_checks as checks
import torch
import torch.nn.functional as F
from small_models import small_config, small_model, tokens
from torch import Tensor

from cosformer.models import KINDS, CosformerForCausalLM
from cosformer.rivals import performer_attention, redraw_features
from cosformer.rivals.drawn_features import DrawnFeatures, gaussian, orthogonal
from cosformer.rivals.performer import default_features, positive_features

OPTIONS = {"attention_options": {"features": 24}}


def draws(count: int, draw: functools.partial) -> list[Tensor]:
    return [draw(torch.Generator().manual_seed(i)).double() for i in range(count)]


@pytest.mark.parametrize("how", [orthogonal, gaussian], ids=["orthogonal", "gaussian"])
def test_the_estimate_of_exp_is_unbiased(how: object) -> None:
    q, k = (torch.randn(5, 8, dtype=torch.float64) for _ in range(2))
    exact = torch.exp(q @ k.mT / math.sqrt(8))
    shape = {"features": 16, "width": 8} if how is orthogonal else {}
    make = functools.partial(how, **shape) if shape else lambda g: gaussian(g, 16, 8)  # pyright: ignore
    found = torch.stack([positive_features(q, w) @ positive_features(k, w).mT for w in draws(4_000, make)])  # pyright: ignore
    error = (found.mean(0) - exact).abs() / (found.std(0) / math.sqrt(4_000))
    assert error.max() < 5  # 25 standard errors: 5 is passed once in 70,000 such tests


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
def test_it_converges_to_softmax_as_features_grow(causal: bool) -> None:
    # shorter than one: the variance grows as exp(‖q + k‖²), and single directions would outweigh all others
    q, k, v = (torch.randn(1, 2, 40, 8, dtype=torch.float64) * size for size in (0.6, 0.6, 1))
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def error(features: int) -> float:
        make = functools.partial(orthogonal, features=features, width=8)
        gaps = [performer_attention(q, k, v, w, causal=causal, floor=0.0) - exact for w in draws(8, make)]
        return torch.stack(gaps).square().mean().sqrt().item()

    few, many = error(64), error(64 * 64)
    assert many < few / 4  # √64 = 8 in the limit
    assert many < 0.05


def test_directions_are_orthogonal_in_blocks_and_as_long_as_gaussian_ones() -> None:
    w = orthogonal(torch.Generator().manual_seed(0), 20, 8).double()
    for i in range(0, 20, 8):
        block = F.normalize(w[i : i + 8], dim=1)
        assert (block @ block.mT - torch.eye(len(block))).abs().max() < 1e-5  # made in float32
    many = orthogonal(torch.Generator().manual_seed(0), 4_000, 8)
    assert abs(many.square().sum(1).mean() - 8) < 5 * math.sqrt(16 / 4_000)  # chi-squared: variance 2K


def test_common_factors_cancel_and_large_inputs_stay_finite() -> None:
    q, k, v = (torch.randn(1, 2, 30, 8) * 30 for _ in range(3))
    w = orthogonal(torch.Generator().manual_seed(0), 32, 8)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for causal in (True, False):
            o = performer_attention(*(x.to(dtype) for x in (q, k, v)), w, causal=causal)
            assert o.dtype == dtype
            assert o.isfinite().all()
            assert o.float().abs().max() <= v.abs().max() * 1.01  # weights are positive: an average


def test_in_models() -> None:
    model = checks.decoder("performer", positions="rotary", **OPTIONS)
    checks.check_causality(model)
    checks.check_cache(model)
    checks.check_packed(model)
    for side in ("left", "right"):
        checks.check_padding(model, side)
        checks.check_padding(checks.encoder("performer", positions="learned", **OPTIONS), side)
    checks.check_looks_both_ways(checks.encoder("performer", **OPTIONS))
    checks.check_across("performer", **OPTIONS)


@pytest.mark.parametrize("causal", [True, False])
def test_it_trains(causal: bool) -> None:
    checks.check_training("performer", causal=causal, **OPTIONS)


def test_a_model_of_three_draws() -> None:
    """Drawn again every second training pass, in a way that a resumed run repeats; never outside of training."""
    options = {"features": 24, "redraw": 2}
    model = small_model(CosformerForCausalLM, attention="performer", attention_options=options)
    ids, drawn = tokens(1, 12), model.model.layers[0].self_attn.kind.drawn
    start = drawn.projection.clone()
    model(ids)
    assert torch.equal(drawn.projection, start)
    model.train()
    seen = []
    for _ in range(5):
        model(ids)
        seen.append(drawn.projection.clone())
    assert torch.equal(seen[0], start)
    assert torch.equal(seen[1], start)
    assert not torch.equal(seen[2], start)
    assert torch.equal(seen[3], seen[2])
    assert not torch.equal(seen[4], seen[2])
    again = small_model(CosformerForCausalLM, attention="performer", attention_options=options)
    again.load_state_dict(model.state_dict())
    other = again.model.layers[0].self_attn.kind.drawn
    for _ in range(2):
        model.train()(ids), again.train()(ids)
        assert torch.equal(other.projection, drawn.projection)
    assert not torch.equal(other.projection, seen[4])
    assert redraw_features(again) == 2
    assert not torch.equal(other.projection, drawn.projection)


def test_layers_draw_differently() -> None:
    model = small_model(CosformerForCausalLM, attention="performer")
    first, second = (m.projection for m in model.modules() if isinstance(m, DrawnFeatures))
    assert not torch.equal(first, second)
    assert first.shape == (int(8 * math.log(8)), 8)


def test_gradients_with_checkpointing_are_those_without() -> None:
    options = {"features": 24, "redraw": 1}
    found = []
    for checkpointing in (False, True):
        model = small_model(CosformerForCausalLM, attention="performer", attention_options=options).double().train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        for _ in range(2):
            model.zero_grad()
            model(tokens(2, 20), labels=tokens(2, 20)).loss.backward()
        found.append([p.grad.clone() for p in model.parameters()])
    assert len(found[0]) > 20
    assert all(checks.gap(a, b) < checks.TIGHT for a, b in zip(*found, strict=True))


def test_two_passes_before_one_backward() -> None:
    model = small_model(CosformerForCausalLM, attention="performer", attention_options={"redraw": 1}).train()
    (model(tokens(1, 9)).logits.sum() + model(tokens(1, 7)).logits.sum()).backward()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"features": 0}, "use at least 1"), ({"redraw": -1}, "use 0 to draw once"), ({"feature": 8}, "did you mean")],
)
def test_wrong_options(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small_config(attention="performer", attention_options=options)


def test_default_features_fit_the_kernels() -> None:
    counts = {width: default_features(width) for width in (1, 4, 8, 16, 32, 64, 128, 256)}
    assert counts == {1: 1, 4: 5, 8: 16, 16: 32, 32: 96, 64: 256, 128: 256, 256: 256}
    for kind, width in (("performer", 64), ("rfa", 256)):
        config = small_config(attention=kind, hidden_size=4 * width)
        assert KINDS[kind].feature_width(config) <= 256  # pyright: ignore[reportAttributeAccessIssue]


def test_packed_sequences_are_shifted_apart() -> None:
    """A shift taken from the whole row, or none, would let the floor of one sequence weigh by another's keys."""
    q, k, v = (torch.randn(1, 2, 48, 8, dtype=torch.float64) * 3 for _ in range(3))
    k[:, :, :30] *= 3
    w = orthogonal(torch.Generator().manual_seed(0), 32, 8).double()
    mask = torch.ones(1, 48, dtype=torch.bool)
    mask[:, 40:] = False
    for key_mask in (None, mask):
        packed = performer_attention(q, k, v, w, cu_seqlens=torch.tensor([0, 30, 31, 48]), key_mask=key_mask)
        for i, j in ((0, 30), (30, 31), (31, 48)):
            own = None if key_mask is None else key_mask[:, i:j]
            alone = performer_attention(q[:, :, i:j], k[:, :, i:j], v[:, :, i:j], w, key_mask=own)
            torch.testing.assert_close(packed[:, :, i:j], alone, rtol=1e-10, atol=1e-10)
    model = checks.encoder("performer", positions="learned", **OPTIONS)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    checks.check_packed(model)
    for wrong, kind, words in (
        ([0, 48], TypeError, "cu_seqlens is a list"),
        (torch.tensor([0, 30]), ValueError, "ends at 30 but there are 48 tokens"),
        (torch.tensor([0, 60]), ValueError, "ends at 60 but there are 48 tokens"),
        (torch.tensor([3, 48]), ValueError, "starts at 3"),
    ):
        with pytest.raises(kind, match=words):
            performer_attention(q, k, v, w, cu_seqlens=wrong)
