"""The paper's ablations are models that differ in what they say, and in nothing else."""

from pathlib import Path

import pytest
from training_data import tiny

from cosformer.sweeps.ablations import ABLATIONS, read_variant, variants_of
from cosformer.training import BadRecipe
from cosformer.training.data import open_data
from cosformer.training.making import make_model

PAPER = {  # name: attention, φ, positions, options
    "identity": ("cosformer_nocos", "identity", "learned", None),
    "leaky_relu": ("cosformer_nocos", "leaky_relu", "learned", None),
    "relu": ("cosformer_nocos", "relu", "learned", None),
    "softmax": ("softmax", "relu", "learned", None),
    "with_cos": ("cosformer", "relu", "learned", None),
    "without_cos": ("cosformer_nocos", "relu", "learned", None),
    "relu+cos": ("cosformer", "relu", "none", None),
    "relu+rope": ("cosformer_nocos", "relu", "rotary", {"rotary": "numerator"}),
    "relu+spe_sine": ("cosformer_nocos", "relu", "none", {"spe": "sine"}),
    "relu+spe_gated": ("cosformer_nocos", "relu", "none", {"spe": "gated"}),
    "relu+nothing": ("cosformer_nocos", "relu", "none", None),
}


def test_each_makes_the_model_it_names(tmp_path: Path) -> None:
    recipe = tiny("lra-listops", tmp_path / "data")
    data = open_data(recipe, tmp_path / "cache")
    variants = variants_of(ABLATIONS, [], [])
    assert {variant.name for variant in variants} == PAPER.keys()
    for variant in variants:
        config = make_model(recipe.with_values(variant.assignments), data).config
        got = (config.attention, config.feature_map, config.positions, config.attention_options)
        assert got == PAPER[variant.name], variant.name


def test_variants_as_a_person_writes_them() -> None:
    variant = read_variant("wide: model.hidden_size=128; model.attention_options={rank = 3}")
    assert variant.name == "wide"
    assert variant.assignments == ("model.hidden_size=128", "model.attention_options={rank = 3}")
    both = variants_of(["cos"], ["softmax"], ["mine: train.steps=3"])
    assert [v.name for v in both] == ["with_cos", "without_cos", "softmax", "mine"]


@pytest.mark.parametrize("text", ["wide", "wide:", ": train.steps=3", "a/b: train.steps=3"])
def test_what_is_no_variant(text: str) -> None:
    with pytest.raises(BadRecipe, match="variant"):
        read_variant(text)


def test_an_unknown_ablation_names_those_there_are() -> None:
    with pytest.raises(BadRecipe, match="no ablation 'feature': use some of features, cos, positions"):
        variants_of(["feature"], [], [])
