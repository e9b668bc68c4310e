"""From a recipe to a trained model in a folder (docs/training.md)."""

from cosformer.training.data import RunData, open_data
from cosformer.training.evaluation import EvalSettings, evaluate
from cosformer.training.not_finite import NotFinite
from cosformer.training.pretraining import self_pretraining, train_pretrained
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe
from cosformer.training.recorder import Watch, read_metrics
from cosformer.training.run import train
from cosformer.training.run_folder import RunSummary
from cosformer.training.shipped import load_recipe, recipe_names

__all__ = [
    "BadRecipe",
    "EvalSettings",
    "NotFinite",
    "Recipe",
    "RunData",
    "RunSummary",
    "Watch",
    "evaluate",
    "load_recipe",
    "open_data",
    "read_metrics",
    "recipe_names",
    "self_pretraining",
    "train",
    "train_pretrained",
]
