"""What is drawn again while training is drawn again in a compiled model, too."""

from pathlib import Path

import pytest
from training_data import tiny

from cosformer.training import read_metrics, train

SMALL = (
    "model.num_hidden_layers=1", "train.steps=4", "eval.every=4", "model.hidden_dropout=0.0",
    "model.attention_dropout=0.0", "train.learning_rate=0.01", "model.attention=performer",
    "model.attention_options.features=8",
)  # fmt: skip


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(run) if line["kind"] == "train"]


def test_a_compiled_model_draws_as_an_eager_one(tmp_path: Path) -> None:
    found = {}
    for name, redraw, compiled in (("eager", 1, "off"), ("compiled", 1, "on"), ("once", 0, "off")):
        more = (f"model.attention_options.redraw={redraw}", f"train.compile={compiled}")
        train(tiny("lra-listops", tmp_path / "data", *SMALL, *more), tmp_path / name, device="cpu")
        found[name] = losses(tmp_path / name)
    assert found["compiled"] == pytest.approx(found["eager"], abs=1e-5)  # sums of a compiler go in another order
    apart = max(abs(a - b) for a, b in zip(found["once"], found["eager"], strict=True))
    assert apart > 1e-4  # or the comparison above could not fail
