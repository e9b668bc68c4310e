"""Every shipped recipe parses, says what it is, and trains two steps on a CPU on data made here."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from training_data import tiny
from transformers import AutoConfig, AutoTokenizer

from cosformer.models.writing import load_model
from cosformer.sweeps.arena import TASKS
from cosformer.tasks.sources import enwik8
from cosformer.training import load_recipe, read_metrics, recipe_names, train
from cosformer.training.recipe import read_recipe_file
from cosformer.training.shipped import listing

WANTED = {
    "lm-stdlib", "lm-enwik8", "lm-wikitext2", "lm-wikitext2-word", "lm-wikitext103", "mlm-wikitext2", "mlm-wikitext103",
    "classify-sst2", "classify-imdb", "classify-qqp", "classify-mnli", "classify-amazon", "translate-multi30k",
    "lm-text", "classify-text",
    *(f"lra-{task}{size}" for task in TASKS for size in ("", "-large")),
}  # fmt: skip


def test_all_that_were_promised_are_there() -> None:
    assert set(recipe_names()) >= WANTED
    for one in listing():
        assert all(one[key] for key in ("task", "about", "needs", "expect")), one["name"]


@pytest.mark.parametrize("name", recipe_names())
def test_parses_and_comes_back(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    (tmp_path / f"{name}.toml").write_text(recipe.toml(), encoding="utf-8")
    assert read_recipe_file(tmp_path / f"{name}.toml") == recipe


@pytest.mark.parametrize("name", recipe_names())
def test_trains_two_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny(name, tmp_path / "data")
    if name == "lm-enwik8":  # whose length is checked
        whole = " the cat sees the red house .\n" * 400
        (tmp_path / "enwik8").write_text(whole)
        cuts = (0, len(whole) - 2000, len(whole) - 1000, len(whole))
        monkeypatch.setattr(enwik8, "BYTES", cuts[3])
        splits = zip(("train", "valid", "test"), pairwise(cuts), strict=True)
        monkeypatch.setattr(enwik8, "RANGES", dict(splits))
        recipe = recipe.with_values([f"data.path={json.dumps(str(tmp_path / 'enwik8'))}"])
    out = tmp_path / "run"
    summary = train(recipe, out, device="cpu")
    assert summary.steps == 2
    lines = read_metrics(out)
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2]
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [2]
    assert bool([line for line in lines if line["kind"] == "sample"]) == bool(recipe.sample.prompts)
    model = load_model(out)
    assert sum(p.numel() for p in model.parameters()) == summary.parameters
    assert AutoConfig.from_pretrained(out).use_cache is True
    assert len(AutoTokenizer.from_pretrained(out)) == model.config.vocab_size
    stored = read_recipe_file(out / "recipe.toml")
    assert stored.model.config["hidden_size"] == 16
    assert json.loads((out / "run.json").read_text())["metrics"] == summary.metrics
    assert "sha256" in (out / "README.md").read_text()
    assert any((out / "tensorboard").iterdir())
