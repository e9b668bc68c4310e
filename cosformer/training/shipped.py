"""The recipes that come with the package, and any other by its path."""

import difflib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from cosformer.training.recipe import Recipe, read_recipe_file
from cosformer.training.recipe_fields import BadRecipe


def recipe_folder() -> Path:
    return Path(str(resources.files("cosformer") / "recipes"))


def recipe_names() -> list[str]:
    return sorted(path.stem for path in recipe_folder().glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The file of a recipe: one that is shipped, by name, or one of your own, by path."""
    own = Path(name)
    if own.suffix == ".toml":
        if not own.is_file():
            raise BadRecipe(f"{name} is not there: name a recipe file, or one of {', '.join(recipe_names())}")
        return own
    path = recipe_folder() / f"{name}.toml"
    if not path.is_file():
        near = difflib.get_close_matches(name, recipe_names(), 1)
        guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(recipe_names())}"
        raise BadRecipe(f"recipe {name!r} is unknown: {guess} (a file of your own ends in .toml)")
    return path


def load_recipe(name: str | Path, *assignments: str) -> Recipe:
    """A shipped recipe by name, or a file, with fields as --set has them: load_recipe("lm-stdlib", "train.steps=9")."""
    recipe = read_recipe_file(find_recipe(str(name)))
    return recipe.with_values(assignments) if assignments else recipe


def listing() -> list[dict[str, Any]]:
    """What each shipped recipe is, without checking it: for lists."""
    found = []
    for name in recipe_names():
        table = tomllib.loads((recipe_folder() / f"{name}.toml").read_text(encoding="utf-8"))
        found.append({"name": name, **{key: table[key] for key in ("task", "about", "needs", "expect")}})
    return found
