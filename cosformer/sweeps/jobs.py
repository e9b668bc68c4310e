"""What a queue is made of: a job is one run of one variant of a recipe, by one seed."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cosformer.models.kinds import KINDS, find_others
from cosformer.training import BadRecipe, Recipe
from cosformer.training.pretraining import self_pretraining
from cosformer.training.recipe import read_recipe_file
from cosformer.training.recipe_fields import unknown
from cosformer.training.run_folder import differences

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A name, and the fields in which its runs differ from the recipe."""

    name: str
    assignments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BadRecipe(f"variant {self.name!r}: letters, digits and _ . + - (it becomes part of a file name)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    group: str
    """What is compared within: a task of the arena, or a recipe."""
    variant: str
    seed: int
    recipe: Recipe
    after: str = ""
    """The job whose model it starts from."""
    tested: bool = True
    """Whether it is tested at its end; those that others start from are not."""

    @property
    def name(self) -> str:
        return f"{self.group}-{self.variant}-{self.seed}"

    def recipe_in(self, folder: Path) -> Recipe:
        """With the place of the model it starts from."""
        if not self.after:
            return self.recipe
        return self.recipe.with_values([f"model.init={json.dumps(str(run_folder(folder, self.after)))}"])


def run_folder(folder: Path, job: str) -> Path:
    return folder / "runs" / job


def attention_variants(names: Iterable[str]) -> list[Variant]:
    """One for each attention that a config may name."""
    find_others()
    found = []
    for name in names:
        if name not in KINDS:
            raise BadRecipe(unknown(name, sorted(KINDS)).replace("a recipe has no field", "there is no attention"))
        found.append(Variant(name=name, assignments=(f"model.attention={name}",)))
    return found


def jobs_of(
    recipes: Mapping[str, Recipe], variants: Sequence[Variant], seeds: Sequence[int], *, pretrain: bool = False,
    before: Mapping[str, Recipe] | None = None,
) -> list[Job]:  # fmt: skip
    """Every group (a recipe by name) with every variant and seed, seeds outermost: the first table is whole early.

    pretrain: each run starts from one on its own inputs (--pretrain). before: recipes of which every variant is trained
    first, once for all groups; the groups start from the last of them.
    """
    for what, names in (("group", recipes), ("variant", [v.name for v in variants]), ("seed", list(map(str, seeds)))):
        if not names:
            raise BadRecipe(f"a queue without any {what}: name at least one")
        if len(set(names)) != len(list(names)):
            raise BadRecipe(f"a {what} is named twice among {', '.join(names)}: each once")
    return [
        job
        for seed in seeds
        for variant in variants
        for job in _jobs_of_one(recipes, variant, seed, pretrain=pretrain, before=before or {})
    ]


def _jobs_of_one(
    recipes: Mapping[str, Recipe], variant: Variant, seed: int, *, pretrain: bool, before: Mapping[str, Recipe]
) -> list[Job]:
    jobs: list[Job] = []

    def add(group: str, recipe: Recipe, after: str, *, tested: bool) -> str:
        jobs.append(Job(group=group, variant=variant.name, seed=seed, recipe=recipe, after=after, tested=tested))
        return jobs[-1].name

    ready = ""
    for group, recipe in before.items():
        ready = add(group, _of(recipe, variant, seed), ready, tested=False)
    for group, recipe in recipes.items():
        asked, after = _of(recipe, variant, seed), ready
        if pretrain:
            after = add(f"{group}-pretrain", self_pretraining(asked), "", tested=False)
        add(group, asked, after, tested=True)
    return jobs


def _of(recipe: Recipe, variant: Variant, seed: int) -> Recipe:
    return replace(recipe.with_values(variant.assignments) if variant.assignments else recipe, seed=seed)


def job_file(folder: Path, job: str) -> Path:
    return folder / "jobs" / f"{job}.toml"


def check_same_jobs(folder: Path, jobs: Iterable[Job]) -> None:
    """Refuses a folder in which a job of the same name has another recipe: its result would be taken for this one's."""
    for job in jobs:
        path = job_file(folder, job.name)
        found = differences(read_recipe_file(path), job.recipe) if path.is_file() else {}
        found.pop("model.init", None)  # follows from the folder
        if found:
            words = ", ".join(f"{name}={new!r} (there {old!r})" for name, (old, new) in found.items())
            raise BadRecipe(f"{folder} has a job {job.name} by another recipe: {words}; name another folder with --out")
