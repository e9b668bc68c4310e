"""What a queue is made of: a job is one run of one variant of a recipe, by one seed."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cosformer.models.kinds import KINDS, find_others
from cosformer.training import BadRecipe, Recipe
from cosformer.training.pretraining import self_pretraining, starting_from
from cosformer.training.recipe import read_recipe_file
from cosformer.training.recipe_fields import nearest
from cosformer.training.run_folder import FREE_TO_CHANGE, differences

QUEUE = ".lock"
"""In the folder of a queue: locked while it runs."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
FREE_WHEN_DONE = FREE_TO_CHANGE - {
    "train.micro_batch", "train.compile", "train.fsdp", "train.gradient_checkpointing", "eval.every", "eval.batches",
    "eval.keep",
}  # fmt: skip
"""Fields that leave the numbers of a finished job as they are: also which weights were kept, speed and memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A name, and the fields in which its runs differ from the recipe."""

    name: str
    assignments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name("variant", self.name)
        check_no_seed(self.assignments)


def _check_name(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise BadRecipe(
            f"{what} {name!r}: a letter or digit, then letters, digits and _ . + - (it becomes part of a file name)"
        )


def check_no_seed(assignments: Iterable[str]) -> None:
    """Seeds are the queue's: one of a field would be set and then replaced without a word."""
    if wrong := [text for text in assignments if text.partition("=")[0].strip() == "seed"]:
        raise BadRecipe(f"{wrong[0]!r}: the runs of a queue take their seeds from --seeds; leave it out here")


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

    def __post_init__(self) -> None:
        _check_name("group", self.group)

    @property
    def name(self) -> str:
        return f"{self.group}-{self.variant}-{self.seed}"

    def recipe_in(self, folder: Path) -> Recipe:
        """With the place of the model it starts from."""
        if not self.after:
            return self.recipe
        return starting_from(self.recipe, run_folder(folder, self.after))


def run_folder(folder: Path, job: str) -> Path:
    return folder / "runs" / job


def attention_variants(names: Iterable[str]) -> list[Variant]:
    """One for each attention that a config may name."""
    names = list(names)
    _check_attentions(names)
    return [Variant(name=name, assignments=(f"model.attention={name}",)) for name in names]


def _check_attentions(names: Iterable[str]) -> None:
    find_others()
    for name in names:
        if name not in KINDS:
            raise BadRecipe(f"there is no attention {name!r}: {nearest(name, sorted(KINDS))}")


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
    jobs = [
        job
        for seed in seeds
        for variant in variants
        for job in _jobs_of_one(recipes, variant, seed, pretrain=pretrain, before=before or {})
    ]
    check_names(jobs)
    return jobs


def check_names(jobs: Sequence[Job]) -> None:
    """Refuses two jobs of one name, which would be one run, and one that waits for a job that is not there."""
    known: dict[str, Job] = {}
    for job in jobs:
        if (other := known.get(job.name)) is not None:
            two = " and ".join(f"variant {one.variant!r} of {one.group!r}" for one in (other, job))
            raise BadRecipe(f"two jobs are called {job.name} ({two}): give one of the recipes or variants another name")
        known[job.name] = job
    for job in jobs:
        if job.after and job.after not in known:
            raise BadRecipe(f"{job.name} starts from {job.after}, which is not in the queue: add that job")


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
        if ready and asked.model.init:
            raise BadRecipe(f"{group} has model.init={asked.model.init!r} and starts from {ready}: leave one out")
        if pretrain:
            after = add(f"{group}-pretrain", self_pretraining(asked), "", tested=False)
        add(group, asked, after, tested=True)
    return jobs


def _of(recipe: Recipe, variant: Variant, seed: int) -> Recipe:
    asked = replace(recipe.with_values(variant.assignments) if variant.assignments else recipe, seed=seed)
    kinds = asked.model.config.get("attention", [])
    _check_attentions([kinds] if isinstance(kinds, str) else kinds)
    return asked


def job_file(folder: Path, job: str) -> Path:
    return folder / "jobs" / f"{job}.toml"


def check_same_jobs(folder: Path, jobs: Iterable[Job], done: Collection[str]) -> None:
    """Refuses a folder in which a job of the same name has another recipe: its result would be taken for this one's.

    done: jobs with a result; of these, what chooses among weights or changes speed and memory must be the same too.
    """
    for job in jobs:
        path = job_file(folder, job.name)
        free = FREE_WHEN_DONE if job.name in done else FREE_TO_CHANGE
        found = differences(read_recipe_file(path), job.recipe, free) if path.is_file() else {}
        found.pop("model.init", None)  # follows from the folder
        if found:
            words = ", ".join(f"{name}={new!r} (there {old!r})" for name, (old, new) in found.items())
            raise BadRecipe(f"{folder} has a job {job.name} by another recipe: {words}; name another folder with --out")
