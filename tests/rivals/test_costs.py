"""What each rival says it costs, against what torch counts and what a cache holds; and maps of any attention."""

from typing import Any

import pytest
import torch
from rival_checks import gap
from small_models import small_config, small_model, tokens
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cosformer.models import KINDS, AttentionKind, CosformerForCausalLM, CosformerModel
from cosformer.models.cache import StateLayer
from cosformer.models.inspection import attention_maps, describe, training_flops_per_token
from cosformer.models.kinds import find_others
from cosformer.models.layout import Layout

find_others()
# not those that other tests or benchmarks register
SHIPPED = [n for n, kind in KINDS.items() if kind.__module__.startswith(("cosformer.models.", "cosformer.rivals."))]
WIDTH, HEADS, KEYS, LENGTH = 16, 4, 2, 512
COUNTED: dict[str, tuple[dict[str, Any], float]] = {
    # options, and how much more torch counts: a band of the strided pattern lies in blocks that are wider than it
    "softmax": ({}, 1),
    "linformer": ({"rank": 24}, 1),
    "rfa_gated": ({"features": 12}, 1),
    "reformer": ({"chunk": 16, "buckets": 8, "rounds": 2}, 1),
    "bigbird": ({"block": 16, "random": 2}, 1),
    "sparse strided": ({"stride": 16}, 80 / 63),
    "sparse fixed": ({"stride": 16, "summary": 4, "pattern": "fixed"}, 1),
}


def config_of(case: str, options: dict[str, Any], **more: Any) -> Any:
    kind = case.split()[0]
    return small_config(
        attention=kind, attention_options=options, causal=kind == "rfa_gated", hidden_size=WIDTH * HEADS,
        horizon=LENGTH, num_hidden_layers=1, **more,
    )  # fmt: skip


def count(config: Any) -> float:
    """Operations of products for each token, as torch counts them."""
    torch.manual_seed(0)
    kind = KINDS[config.attention](config, 0, causal=config.causal).eval()
    q, k, v = (torch.randn(1, n, LENGTH, WIDTH) for n in (HEADS, KEYS, KEYS))
    places = torch.arange(LENGTH)[None]
    # torch has no count for SDPA's fused kernel on a CPU
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        kind.attend(q, k, v, Layout(places=places), None)
    return counter.get_total_flops() / LENGTH


@pytest.mark.parametrize("case", COUNTED)
def test_operations_are_those_torch_counts(case: str) -> None:
    options, more = COUNTED[case]
    config = config_of(case, options)
    cost = KINDS[config.attention].cost(config, causal=config.causal)
    assert cost is not None
    seen = (LENGTH + 1) / 2 if config.causal else LENGTH
    assert count(config) == pytest.approx(more * (cost.flops + cost.flops_of_context * seen))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("performer", {"features": 24}),
        ("rfa", {"features": 12}),
        ("linear", {"spe": "sine", "spe_realisations": 10, "spe_sines": 3}),
        ("performer", {"features": 24, "spe": "gated", "spe_realisations": 10}),
    ],
)
def test_features_are_counted_exactly(kind: str, options: dict[str, Any]) -> None:
    """Torch does not look into our operator, so it counts what makes features."""
    config, plain = config_of(kind, options), config_of("linear", {})
    cost = KINDS[kind].cost(config, causal=False)
    inside = KINDS["linear"].cost(plain, causal=False)
    assert cost is not None
    assert inside is not None
    width = KINDS[kind].feature_width(config)  # pyright: ignore[reportAttributeAccessIssue]
    assert count(config) == cost.flops - inside.flops * width / WIDTH


@pytest.mark.parametrize("kind", [name for name in SHIPPED if KINDS[name].causal_too and name != "reformer"])
def test_bytes_are_those_a_cache_holds(kind: str) -> None:
    model = small_model(CosformerForCausalLM, attention=kind)
    facts = describe(model.config)
    with torch.no_grad():
        cache = model(tokens(1, 20), use_cache=True).past_key_values
    state = sum(x.sums.nbytes + x.norm.nbytes for x in cache.layers if isinstance(x, StateLayer))
    grown = sum(x.keys.nbytes + x.values.nbytes for x in cache.layers if not isinstance(x, StateLayer))
    assert (facts["state_bytes"], 20 * facts["cache_bytes_per_token"]) == (state, grown)


@pytest.mark.parametrize("kind", SHIPPED)
def test_every_attention_says_what_training_costs(kind: str) -> None:
    config = small_config(attention=kind, causal=KINDS[kind].causal_too, head_dim=64, horizon=4_096)
    short, long = (training_flops_per_token(config, length) for length in (1_024, 2_048))
    assert 0 < short <= long
    assert (short < long) == (kind in ("softmax", "sparse"))


def test_positions_cost_more() -> None:
    plain = small_config(attention="linear")
    rope = small_config(attention="linear", positions="rotary", attention_options={"rotary": "numerator"})
    spe = small_config(attention="linear", attention_options={"spe": "gated"})
    costs = [training_flops_per_token(config, 100) for config in (plain, rope, spe)]
    assert costs == sorted(costs)
    assert len(set(costs)) == 3


def test_a_kind_that_wants_values_as_wide_as_heads_is_drawn_too() -> None:
    class Averaging(AttentionKind):
        def attend(self, q: Any, k: Any, v: Any, layout: Any, cache: Any) -> Any:
            return v.mean(2, keepdim=True).expand_as(q)

    kind = Averaging(small_config(), 0, causal=False)
    q = torch.randn(1, 2, 21, 8)
    assert gap(kind.weights(q, q, Layout()), torch.full((1, 2, 21, 21), 1 / 21)) < 1e-6


def test_a_norm_hides_the_weights_of_other_positions() -> None:
    model = small_model(CosformerModel, attention="linear", normalizer="norm", attention_options={"spe": "sine"})
    with pytest.raises(ValueError, match="a norm hides them"):
        attention_maps(model, tokens(1, 5))
    plain = small_model(CosformerModel, attention="linear", normalizer="norm")
    assert attention_maps(plain, tokens(1, 5))[0].shape == (4, 5, 5)


MAPS: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in SHIPPED},
    "linformer": {"rank": 8},
    "linear spe": {"spe": "gated", "spe_realisations": 8},
    "cosformer_nocos rotary": {"rotary": "numerator"},
}


@pytest.mark.parametrize("case", MAPS)
@torch.no_grad()
def test_maps_are_the_weights_on_values(case: str) -> None:
    kind = case.split()[0]
    model = small_model(
        CosformerModel, attention=kind, causal=KINDS[kind].causal_too, attention_options=MAPS[case],
        positions="rotary" if "rotary" in case else "none",
    ).double()  # fmt: skip
    ids, found = tokens(1, 21), []
    maps = attention_maps(model, ids)
    attention = model.layers[0].self_attn
    plain = attention.kind.attend

    def watched(q: Any, k: Any, v: Any, layout: Any, cache: Any) -> Any:
        found.append((v, plain(q, k, v, layout, cache)))
        return found[-1][1]

    attention.kind.attend = watched
    model(ids, use_cache=False)
    (v, o), weights = found[0], maps[0].double()
    assert weights.shape == (4, 21, 21)
    assert gap(weights @ v[0].repeat_interleave(2, 0), o[0]) < 1e-4  # maps are float32
    if kind not in ("linformer", "cosformer", "cosformer_nocos"):  # relu kills rows
        assert gap(weights.sum(-1), torch.ones(4, 21, dtype=torch.float64)) < 1e-5
