"""Runs of one seed differ in their attention alone; runs of two seeds in weights and order of data."""

from pathlib import Path

import torch
from torch import Tensor
from training_data import tiny

from cosformer.sweeps import attention_variants, jobs_of
from cosformer.tasks import ResumableBatches
from cosformer.training import Recipe
from cosformer.training.batches import Key, RunBatches
from cosformer.training.data import RunData, open_data
from cosformer.training.making import make_model


def order(recipe: Recipe, data: RunData) -> list[list[Key]]:
    """As train() reads: by length, batch and seed of the recipe."""
    batches = ResumableBatches(len(data.dataset("train")), recipe.train.batch, seed=recipe.seed)
    return list(RunBatches(batches, steps=12))


def test_seeds_and_attentions(tmp_path: Path) -> None:
    recipe = tiny("lra-listops", tmp_path / "data", "data.sizes=[24, 4, 4]")
    jobs = jobs_of({"listops": recipe}, attention_variants(["cosformer", "linear"]), [0, 1])
    orders: dict[str, list[list[Key]]] = {}
    weights: dict[str, dict[str, Tensor]] = {}
    read: dict[str, Tensor] = {}
    for job in jobs:
        data = open_data(job.recipe, tmp_path / "cache")
        orders[job.name] = order(job.recipe, data)
        weights[job.name] = make_model(job.recipe, data).state_dict()
        read[job.name] = data.training_set().__getitems__(orders[job.name][0])["input_ids"]
    for seed in (0, 1):
        ours, rival = f"listops-cosformer-{seed}", f"listops-linear-{seed}"
        assert orders[ours] == orders[rival]
        assert torch.equal(read[ours], read[rival])
        shared = weights[ours].keys() & weights[rival].keys()
        assert len(shared) > 10
        assert all(torch.equal(weights[ours][name], weights[rival][name]) for name in shared)
    assert orders["listops-cosformer-0"] != orders["listops-cosformer-1"]
    name = next(name for name, value in weights["listops-cosformer-0"].items() if value.dim() == 2)
    assert not torch.equal(weights["listops-cosformer-0"][name], weights["listops-cosformer-1"][name])
