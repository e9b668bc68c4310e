"""rotary="numerator": RoPE for attention by features, as its authors define it; weights are relative."""

from typing import Any

import pytest
import rival_checks as checks
import torch
import torch.nn.functional as F
from comparing import assert_rounding_only
from small_models import small_config
from torch import Tensor

from cosformer.nn.positions import rotary_tables, rotate
from cosformer.rivals.linear_positions import rotated_attention


def by_definition(phi_q: Tensor, phi_k: Tensor, v: Tensor, causal: bool, tables: tuple[Tensor, Tensor]) -> Tensor:
    over, under = rotate(phi_q, tables) @ rotate(phi_k, tables).mT, phi_q @ phi_k.mT
    if causal:
        over, under = over.tril(), under.tril()
    return over @ v / under.sum(-1, keepdim=True)


def features(t: int, width: int, v_width: int) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    phi_q, phi_k = (F.elu(torch.randn(2, 3, t, width, dtype=torch.float64)) + 1 for _ in range(2))
    tables = rotary_tables(torch.arange(t)[None], width, 10_000.0, torch.float64)
    return phi_q, phi_k, torch.randn(2, 3, t, v_width, dtype=torch.float64), tables


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
def test_it_equals_the_dense_definition_with_gradients(causal: bool, backend: str) -> None:
    phi_q, phi_k, v, tables = features(300, 18, 7)
    inputs = [x.requires_grad_() for x in (phi_q, phi_k, v)]
    exact = by_definition(phi_q, phi_k, v, causal, tables)
    got, _ = rotated_attention(phi_q, phi_k, v, tables, causal=causal, backend=backend)
    assert_rounding_only(got, exact, terms=300, size=v.abs().max().item())
    found, wanted = (torch.autograd.grad(o.square().sum(), inputs) for o in (got, exact))
    assert all(checks.gap(a, b) < 1e-10 for a, b in zip(found, wanted, strict=True))


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")  # Triton's interpreter
def test_the_triton_kernels_give_the_same() -> None:
    pytest.importorskip("triton")
    phi_q, phi_k, v, tables = features(70, 16, 8)
    low = [x.float() for x in (phi_q, phi_k, v)]
    tables = tables[0].float(), tables[1].float()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    got, _ = rotated_attention(
        *(x.to(device) for x in low), tuple(x.to(device) for x in tables), causal=True, backend="triton"
    )  # fmt: skip
    exact = by_definition(*(x.double() for x in low), True, tuple(x.double() for x in tables))  # pyright: ignore
    assert checks.gap(got.double().cpu(), exact) < 1e-4


def test_pieces_give_what_the_whole_gives() -> None:
    phi_q, phi_k, v, tables = features(60, 18, 7)
    whole, state = rotated_attention(phi_q, phi_k, v, tables, causal=True)
    held, got = None, []
    for i, j in ((0, 33), (33, 34), (34, 60)):
        part = tuple(x[:, i:j] for x in tables)
        o, held = rotated_attention(
            phi_q[:, :, i:j], phi_k[:, :, i:j], v[:, :, i:j], part, causal=True, state=held  # pyright: ignore
        )  # fmt: skip
        got.append(o)
    assert checks.gap(torch.cat(got, 2), whole) < 1e-12
    assert held is not None
    assert state is not None
    assert checks.gap(held.sums, state.sums) < 1e-12
    assert checks.gap(held.norm, state.norm) < 1e-12


def test_weights_are_relative_and_those_before_relu_are_not() -> None:
    """The same words three places later get the same answer. Turned before relu, they do not."""
    gaps = {}
    for where in ("numerator", "before"):
        model = checks.decoder("cosformer_nocos", positions="rotary", attention_options={"rotary": where})
        ids = checks.tokens(1, 20)
        with torch.no_grad():
            here, later = (model(ids, position_ids=torch.arange(n, n + 20)[None]).logits for n in (0, 3))
        gaps[where] = checks.gap(here, later)
    assert gaps["numerator"] < 1e-5  # angles are reckoned in float32
    assert gaps["before"] > 1e-3


KINDS: dict[str, dict[str, Any]] = {
    "linear": {}, "cosformer_nocos": {}, "performer": {"features": 12}, "rfa": {"features": 6},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_in_models(kind: str) -> None:
    options: dict[str, Any] = {
        "positions": "rotary", "attention_options": {"rotary": "numerator", **KINDS[kind]},
    }  # fmt: skip
    model = checks.decoder(kind, **options)
    checks.check_causality(model)
    checks.check_cache(model)
    checks.check_packed(model)
    for side in ("left", "right"):
        checks.check_padding(model, side)
        checks.check_padding(checks.encoder(kind, **options), side)
    checks.check_looks_both_ways(checks.encoder(kind, **options))
    for causal in (True, False):
        checks.check_training(kind, causal=causal, **options)


def test_with_a_norm_in_place_of_the_denominator() -> None:
    model = checks.decoder(
        "cosformer_nocos", positions="rotary", normalizer="norm", attention_options={"rotary": "numerator"}
    )
    checks.check_causality(model)
    checks.check_cache(model)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such": ({"attention_options": {"rotary": "after"}}, "use before or numerator"),
    "no rotation": ({"positions": "learned"}, "there is no rotation; set positions='rotary'"),
    "two kinds": ({"attention_options": {"rotary": "numerator", "spe": "sine"}}, "two kinds of positions"),
    "odd": (
        {"attention": "performer", "attention_options": {"rotary": "numerator", "features": 7}}, "turned in pairs",
    ),
    "gated": ({"attention": "rfa_gated"}, "nobody has defined a gated sum"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_refused(case: str) -> None:
    options, words = WRONG[case]
    base: dict[str, Any] = {
        "attention": "linear", "positions": "rotary", "attention_options": {"rotary": "numerator"},
    }  # fmt: skip
    with pytest.raises(ValueError, match=words):
        small_config(**{**base, **options})
