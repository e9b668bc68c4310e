"""The Long-Range Arena as a queue: which recipe each task is, with the data where it lies."""

import json
from collections.abc import Mapping, Sequence

from cosformer.sweeps.jobs import check_no_seed
from cosformer.tasks import NAMED
from cosformer.training import BadRecipe, Recipe, load_recipe
from cosformer.training.sources import GENERATED

PREFIX = "lra-"
TASKS = tuple(name.removeprefix(PREFIX) for name in NAMED if name.startswith(PREFIX))


def arena_recipes(
    tasks: Sequence[str], *, large: bool = False, data: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
) -> dict[str, Recipe]:  # fmt: skip
    """By group: `listops`, or `listops-large`. data: by task, where its files are; absent, its jobs are skipped."""
    data = dict(data or {})
    for task in (*tasks, *data):
        if task not in TASKS:
            raise BadRecipe(f"the arena has no task {task!r}: there are {', '.join(TASKS)}")
        if task not in tasks:
            raise BadRecipe(f"data of {task!r}, which is not among the tasks {', '.join(tasks)}: leave it out")
        if task in data and PREFIX + task in GENERATED:
            raise BadRecipe(f"{task} is generated and reads no files, got {data[task]}: leave it out of --data")
    check_no_seed(assignments)
    found: dict[str, Recipe] = {}
    for task in tasks:
        if tasks.count(task) > 1:
            raise BadRecipe(f"task {task!r} is named twice: each once")
        group = f"{task}-large" if large else task
        own = [f"data.path={json.dumps([data[task]])}"] if task in data else []
        found[group] = load_recipe(PREFIX + group, *assignments, *own)
    return found
