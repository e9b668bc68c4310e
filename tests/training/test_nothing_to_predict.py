"""Where nothing is to be predicted: a step that does is no NaN, an evaluation that does is refused before training."""

import math
from pathlib import Path

import pytest
from training_data import tiny

from cosformer.training import BadRecipe, EvalSettings, evaluate, read_metrics, train

FEW = ("data.mask_share=0.01", "data.length=4", "train.batch=1", "train.steps=3", "eval.batch=1")


def test_a_step_without_targets_has_the_loss_0(tmp_path: Path) -> None:
    train(tiny("mlm-wikitext2", tmp_path / "data", *FEW, "eval.batches=0"), tmp_path / "run", device="cpu")
    losses = [line["loss"] for line in read_metrics(tmp_path / "run") if line["kind"] == "train"]
    assert 0.0 in losses
    assert all(map(math.isfinite, losses))
    with pytest.raises(ValueError, match=r"'valid' no token is to be predicted.*data.mask_share"):
        evaluate(tmp_path / "run", EvalSettings(split="valid", batch=1, batches=1, context=2), device="cpu")


def test_an_evaluation_without_targets_is_refused_before(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=r"'valid' no token is to be predicted.*eval.batches"):
        train(
            tiny("mlm-wikitext2", tmp_path / "data", *FEW, "eval.batches=1", "data.length=2"),
            tmp_path / "run",
            device="cpu",
        )
    assert not (tmp_path / "run" / "recipe.toml").exists()
