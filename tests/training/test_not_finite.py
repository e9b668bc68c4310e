"""A NaN stops the run at its step, names batch and tensor, and leaves the last good checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from training_data import tiny

from cosformer.training import NotFinite, engine, read_metrics, train
from cosformer.training.checkpoint import checkpoints, read_weights
from cosformer.training.not_finite import Guard

RECIPE = ("train.steps=8", "train.save_every=3", "eval.every=3", "sample.prompts=[]", "train.micro_batch=2")


def poisoned(monkeypatch: pytest.MonkeyPatch, step: int, spoil: Any) -> None:
    """Calls spoil(trainer) before that step's first micro-batch."""
    plain = engine.RunTrainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == step:
            spoil(self)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(engine.RunTrainer, "training_step", training_step)


def test_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first module whose output is bad is named, not the many after it."""

    def spoil(trainer: Any) -> None:
        layer = trainer.model.model.layers[1].mlp
        if not layer._forward_hooks:
            layer.register_forward_hook(lambda module, inputs, output: output * float("nan"))

    poisoned(monkeypatch, 5, spoil)
    recipe = tiny("lm-stdlib", tmp_path / "data", *RECIPE)
    with pytest.raises(NotFinite) as error:
        train(recipe, tmp_path / "run", device="cpu")
    words = str(error.value)
    assert words.startswith("step 6: the output of model.layers.1")
    assert "The weights were not changed" in words
    kept = tmp_path / "run" / "checkpoint-3"
    assert f"the last good checkpoint is checkpoint-3, from which a new run starts by --set model.init={kept}" in words
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["checkpoint-3"]
    assert all(value.isfinite().all() for value in read_weights(tmp_path / "run" / "checkpoint-3").values())
    event = read_metrics(tmp_path / "run")[-1]
    assert (event["event"], event["step"], len(event["examples"])) == ("not finite", 5, 4)
    assert str(event["examples"][0]) in words
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(trainer: Any) -> None:
        weight = trainer.model.model.layers[0].self_attn.v_proj.weight
        if not weight._backward_hooks:
            weight.register_hook(lambda grad: grad * float("inf"))

    poisoned(monkeypatch, 0, spoil)
    with pytest.raises(NotFinite) as error:
        train(tiny("lm-stdlib", tmp_path / "data", *RECIPE), tmp_path / "run", device="cpu")
    assert "step 1: the gradient of model.layers.0.self_attn.v_proj.weight is not finite" in str(error.value)
    assert "there is no checkpoint yet" in str(error.value)


def test_a_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(trainer: Any) -> None:
        with torch.no_grad():
            trainer.model.model.norm.weight[0] = float("nan")

    poisoned(monkeypatch, 4, spoil)
    with pytest.raises(NotFinite, match=r"step 5: the weight model\.norm\.weight is not finite.*-3, which may"):
        train(tiny("lm-stdlib", tmp_path / "data", *RECIPE), tmp_path / "run", device="cpu")


def test_a_weight_of_the_model_started_from(tmp_path: Path) -> None:
    """No update and no example is blamed for what was there before them."""
    recipe = tiny("lm-stdlib", tmp_path / "data", *RECIPE)
    train(recipe, tmp_path / "bad", device="cpu")
    weights = read_weights(tmp_path / "bad")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, tmp_path / "bad" / "model.safetensors", {"format": "pt"})
    with pytest.raises(NotFinite) as error:
        train(recipe.with_values([f'model.init="{tmp_path / "bad"}"']), tmp_path / "run", device="cpu")
    words = str(error.value)
    assert words.startswith("step 1: the weight model.norm.weight is not finite, as model.init=")
    assert "start from another model" in words
    assert "update" not in words
    with pytest.raises(NotFinite, match=r"step 1: the weight \S+ is not finite, as it was drawn"):
        train(recipe.with_values(["model.initializer_range=1e39"]), tmp_path / "drawn", device="cpu")


def test_goes_on_from_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny("lm-stdlib", tmp_path / "data", *RECIPE)

    def spoil(trainer: Any) -> None:
        trainer.model.model.norm.register_forward_hook(lambda module, inputs, output: output * float("nan"))

    with monkeypatch.context() as patch:
        poisoned(patch, 5, spoil)
        with pytest.raises(NotFinite):
            train(recipe, tmp_path / "run", device="cpu")
    other = recipe.with_values([f"model.init={tmp_path / 'run' / 'checkpoint-3'}", "train.learning_rate=1e-4"])
    assert train(other, tmp_path / "other", device="cpu").steps == 8  # as the message says
    assert train(None, tmp_path / "run", resume=True, device="cpu").steps == 8
    train(recipe, tmp_path / "whole", device="cpu")
    both = [[x["loss"] for x in read_metrics(tmp_path / run) if x["kind"] == "train"] for run in ("run", "whole")]
    assert both[0] == both[1]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_fused_optimizer_changes_nothing_from_the_first_bad_norm_on(device: str) -> None:
    """As on CUDA, where nobody looks at each step. torch's fused CPU kernel honours `found_inf` alike."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    guard = Guard(lambda: optimizer, deferred=True)
    values = []
    for step, grad in enumerate([1.0, 1.0, float("nan"), 1.0, float("inf"), 1.0]):
        weight.grad = torch.full_like(weight, grad)
        assert guard.see(weight.grad.norm(), step) is None
        optimizer.step()
        values.append(weight.detach().clone())
    assert guard.look() == 2
    assert not torch.equal(values[0], values[1])
    for later in values[2:]:
        assert torch.equal(later, values[1])
