"""On a GPU: bf16, compiled, a fused optimizer, readers in other processes; a NaN found without waiting each step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from training_data import tiny

from cosformer.training import NotFinite, engine, read_metrics, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # compilers warn of much, and torch opens its pool of graphs by an empty one
]
WIDE = ("model.hidden_size=64", "model.intermediate_size=128", "data.length=128", "model.horizon=128", "train.steps=12",
        "train.log_every=4", "train.save_every=4", "eval.every=6")  # fmt: skip


@pytest.mark.parametrize("name", ["lm-stdlib", "mlm-wikitext2", "classify-sst2", "translate-multi30k"])
@pytest.mark.parametrize("attention", ["cosformer", "softmax"])
def test_trains_as_it_would_for_a_user(name: str, attention: str, tmp_path: Path) -> None:
    summary = train(tiny(name, tmp_path / "data", *WIDE, f"model.attention={attention}"), tmp_path / "run")
    assert (summary.precision, summary.compiled, summary.steps) == ("bf16", True, 12)
    lines = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "train"]
    assert lines[-1]["loss"] < lines[0]["loss"] + 0.1
    assert summary.peak_flops is not None
    assert summary.memory_bytes > 0


@pytest.mark.parametrize("attention", ["cosformer", "softmax", "performer"])
@pytest.mark.parametrize("name", ["lm-stdlib", "lra-image"])
def test_graphs_learn_the_same(name: str, attention: str, tmp_path: Path) -> None:
    """Replayed: the same losses but for the order of sums, with dropout by the seed of each step, over evaluations."""
    found = {}
    for choice in ("on", "graphs"):
        more = (f"train.compile={choice}", f"model.attention={attention}", "model.hidden_dropout=0.1", "train.steps=24")
        torch._dynamo.reset()
        counters.clear()
        train(tiny(name, tmp_path / "data", *WIDE, *more), tmp_path / choice)
        assert counters["inductor"]["cudagraph_skips"] == 0
        assert (counters["inductor"]["cudagraph_recorded_non_static_inputs"] > 0) == (choice == "graphs")
        found[choice] = [x["loss"] for x in read_metrics(tmp_path / choice) if x["kind"] in ("train", "eval")]
    assert found["graphs"] == pytest.approx(found["on"], abs=5e-3)


def test_goes_on_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny("lm-stdlib", tmp_path / "data", *WIDE, "model.hidden_dropout=0.1")
    train(recipe, tmp_path / "whole")
    plain = engine.RunTrainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 6:
            self.interrupted = True
        return plain(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(engine.RunTrainer, "training_step", training_step)
        assert train(recipe, tmp_path / "run").interrupted
    train(None, tmp_path / "run", resume=True)
    both = [[x["loss"] for x in read_metrics(tmp_path / r) if x["kind"] == "eval"] for r in ("run", "whole")]
    assert both[0] == pytest.approx(both[1], abs=2e-3)  # bf16, and sums in any order


def test_a_nan_is_found_where_the_run_waits_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = engine.RunTrainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = plain(self, *args, **kwargs)
        if self.state.global_step == 5:  # nobody looks before step 8
            next(self.model.parameters()).grad.fill_(float("nan"))
        return loss

    monkeypatch.setattr(engine.RunTrainer, "training_step", training_step)
    with pytest.raises(NotFinite, match=r"step 6: .* the last good checkpoint is checkpoint-4"):
        train(tiny("lm-stdlib", tmp_path / "data", *WIDE), tmp_path / "run")
