"""Ways to name data that no shipped recipe takes by itself."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from training_data import tiny

from cosformer.models.writing import load_model
from cosformer.training import BadRecipe, load_recipe, open_data, train
from cosformer.training.making import config_for
from cosformer.training.sources import source_of


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_data_set_of_a_hub_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="hub data sets: pip install cosformer[data]")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "owner" / "set"
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        rows = [json.dumps({"text": f"{split} line {i} of some words", "label": i % 2}) for i in range(60)]
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    name = ["data.source=hub", f"data.path={json.dumps(str(folder))}"]
    assert train(tiny("lm-text", tmp_path / "data", *name), tmp_path / "lm", device="cpu").steps == 2
    classes = 'data.classes=["no", "yes"]'
    train(tiny("classify-text", tmp_path / "data", *name, classes), tmp_path / "classify", device="cpu")
    assert load_model(tmp_path / "classify").config.id2label == {0: "no", 1: "yes"}


def test_pairs_read_apart_by_two_towers(tmp_path: Path) -> None:
    train(tiny("classify-qqp", tmp_path / "data", "data.apart=true"), tmp_path / "run", device="cpu")
    assert type(load_model(tmp_path / "run")).__name__ == "CosformerForPairClassification"


def test_a_source_and_its_target_in_a_table(tmp_path: Path) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text("from\tto\n" + "".join(f"word {i % 7}\tWort {i % 7}\n" for i in range(120)))
    own = ["data.source=examples", f"data.path={json.dumps(str(table))}", 'data.columns=["from", "to"]']
    recipe = tiny("translate-multi30k", tmp_path / "data", *own, "tokenizer.kind=bytes")
    assert train(recipe, tmp_path / "run", device="cpu").metrics["perplexity"] > 1


def test_a_tokenizer_of_your_own_and_one_cache_for_many_runs(tmp_path: Path) -> None:
    from cosformer.models import byte_tokenizer

    byte_tokenizer().save_pretrained(tmp_path / "mine")
    own = ["tokenizer.kind=path", f"tokenizer.path={json.dumps(str(tmp_path / 'mine'))}"]
    first = open_data(tiny("lm-text", tmp_path / "data", *own), tmp_path / "cache")
    again = open_data(tiny("lm-text", tmp_path / "data"), tmp_path / "cache")  # bytes too: the same ids
    assert first.shards["train"].folder == again.shards["train"].folder
    other = open_data(tiny("lm-text", tmp_path / "data", "tokenizer.kind=word"), tmp_path / "cache")
    assert other.shards["train"].folder != again.shards["train"].folder
    assert other.shards["train"].tokens < again.shards["train"].tokens


@pytest.mark.parametrize(
    ("name", "field", "takers"),
    [
        ("lm-stdlib", "data.column=text2", "text, examples, hub"),
        ("lm-stdlib", 'data.valid_path="x"', "text, examples"),
        ("lm-stdlib", "data.seed=3", "lra-listops, lra-pathfinder"),
        ("classify-sst2", "data.label=other", "examples, hub"),
        ("classify-sst2", 'data.classes=["a", "b"]', "examples, hub"),
        ("lm-text", "data.revision=abc", "hub"),
        ("lra-text", "data.skip_black=true", "lra-pathfinder, lra-image"),
        ("lm-text", 'data.languages=["en", "de"]', "multi30k"),
    ],
    ids=str,
)
def test_what_a_source_does_not_read_is_refused(name: str, field: str, takers: str, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=rf"says nothing to data\.source=.*, only to {takers}: leave it out"):
        train(tiny(name, tmp_path / "data", field), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", ["classify", "mlm"])
def test_pictures_are_read_without_black_pixels(task: str, tmp_path: Path) -> None:
    """As lra-pathfinder says; both when it is learned and before that."""
    recipe = load_recipe("lra-pathfinder", "data.sizes=[6, 2, 2]", f"task={task}")
    data = open_data(recipe, tmp_path)
    batch = data.training_set().__getitems__([(0, i) for i in range(6)])
    assert batch["input_ids"].shape == batch["position_ids"].shape == batch["attention_mask"].shape == (6, 320)
    lit = batch["attention_mask"].bool()
    pictures = data.shards["train"].rows(data.shards["train"].spans(np.arange(6))).values
    assert (pictures > 0).sum(1).tolist() == lit.sum(1).tolist()
    for row in range(6):
        places, seen = batch["position_ids"][row, lit[row]], batch["input_ids"][row, lit[row]]
        true = torch.from_numpy(pictures[row])[places]
        labels = batch["labels"][row, lit[row]] if task == "mlm" else torch.full_like(seen, -100)
        assert torch.equal(torch.where(labels != -100, labels, seen), true)
    assert config_for(recipe, data).learned_positions == 1024
    whole = recipe.with_values(["data.skip_black=false"])
    told: list[str] = []
    items = open_data(whole, tmp_path, said=told.append).training_set()
    assert "position_ids" not in items.__getitems__([(0, 0)])
    assert any("data.length=320: of each 1,024 tokens the rest is not read" in line for line in told)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("tokenizer.kind=bytes", "pixels are tokens of kind task"),
        ("model.positions=none", "nothing would tell where a pixel is"),
        ("model.learned_positions=400", "1,024 pixels and 400 learned positions"),
    ],
)
def test_black_pixels_that_cannot_be_left_out(field: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=words):
        train(tiny("lra-pathfinder", tmp_path / "data", field), tmp_path / "run", device="cpu")


def test_a_hub_has_one_name(tmp_path: Path) -> None:
    recipe = tiny("lm-text", tmp_path / "data", "data.source=hub", 'data.path=["a", "b"]')
    with pytest.raises(BadRecipe, match="a hub data set has one name"):
        source_of(recipe)
