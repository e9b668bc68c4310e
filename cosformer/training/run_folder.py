"""The folder of a run: checked before training, closed with a model, a summary and a card."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from cosformer.models.folders import check_free
from cosformer.tasks.locks import only
from cosformer.tasks.shards.atomic import TEMPORARY, write_atomically
from cosformer.training.card import card
from cosformer.training.checkpoint import newest
from cosformer.training.not_finite import NotFinite
from cosformer.training.recipe import Recipe, read_recipe_file
from cosformer.training.sources import named

RECIPE, SUMMARY, CARD = "recipe.toml", "run.json", "README.md"
BEST, FINAL = "best", "final"
"""Folders of weights while a run is not finished."""
NO_ROOM = 2**20
"""Bytes: a disk with less is full."""
FULL = (errno.ENOSPC, errno.EDQUOT)
FREE_TO_CHANGE = {
    "about", "needs", "expect", "data.path", "data.valid_path", "data.test_path", "train.micro_batch", "train.workers",
    "train.log_every", "train.save_every", "train.keep", "train.compile", "train.fsdp", "train.gradient_checkpointing",
    "eval.every", "eval.batches", "eval.batch", "eval.keep", "sample.prompts", "sample.tokens", "sample.temperature",
    "sample.top_p", "pretrain.steps", "pretrain.batch", "pretrain.learning_rate", "pretrain.warmup_steps",
}  # fmt: skip
"""Fields that leave the weights of every step as they are."""
MAY_MOVE = {"model.init", "tokenizer.path"}
"""Folders that may lie elsewhere by now: weights are the checkpoint's, and the tokenizer is known by what it does."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """run.json: what a run was and what came of it."""

    recipe: str
    task: str
    out: str
    data: dict[str, Any]
    parameters: int
    steps: int
    tokens: int
    seconds: float
    """Of training: without evaluation, samples and checkpoints."""
    seconds_waiting_for_data: float
    seconds_logging: float
    seconds_evaluating: float
    seconds_saving: float
    tokens_per_second: float | None
    """The median over the log's windows, the first left out where there are more: it holds compilation."""
    share_of_peak: float | None
    peak_flops: float | None
    """Of a product of large matrices, measured before training; None on a CPU."""
    memory_bytes: int
    processes: int
    sharded: bool
    """Weights and optimizer were split over the processes (FSDP2)."""
    precision: str
    compiled: bool
    metrics: dict[str, Any]
    """Of the weights in the folder, on the split of periodic evaluation."""
    best_step: int | None
    interrupted: bool
    environment: dict[str, Any]

    def write(self, run: Path) -> None:
        write_atomically(run / SUMMARY, [(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode()])

    @classmethod
    def read(cls, run: Path) -> "RunSummary":
        found = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in found.items() if name in names})


def check_new(run: Path) -> None:
    """Refuses a folder that holds something."""
    try:
        check_free(run)
    except FileExistsError as error:
        raise FileExistsError(
            f"{run} is there already and nothing is overwritten: "
            + ("--resume goes on with the run in it; or " if (run / RECIPE).is_file() else "it holds no run; ")
            + "name another folder with --out, or remove it"
        ) from error


def check_writable(folder: Path, option: str = "--out") -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise OSError(f"{folder} cannot be written ({why}): name another folder with {option}") from error


@contextmanager
def alone_in(run: Path) -> Iterator[None]:
    """Each of two would take the other's unfinished files for those of a killed one."""
    with ExitStack() as stack:
        try:
            stack.enter_context(only(run))
        except BlockingIOError:
            raise ValueError(
                f"{run}: another process is training in this folder, and two would break each other's checkpoints: "
                "wait for it, or name another folder with --out"
            ) from None
        yield


def check_space(run: Path, parameters: int, keep: int) -> None:
    free = shutil.disk_usage(run).free
    need, least = (_bytes(parameters, kept) for kept in (keep, 1))
    if need <= free:
        return
    what = "a checkpoint" if keep == 1 else f"{keep:,} checkpoints"
    fix = "--set train.keep=1, or name" if least <= free else "train a smaller model, or name"
    raise OSError(
        f"{run}: {what} of {parameters:,} parameters, one more while it is written, and the model take {need:,} bytes, "
        f"and {free:,} are free: {fix} a folder on a larger disk with --out"
    )


def _bytes(parameters: int, keep: int) -> int:
    """Weights and two moments in fp32 for each checkpoint and one being written; weights twice more (best, final)."""
    return 4 * parameters * (3 * (keep + 1) + 2)


@contextmanager
def full_disk_told(run: Path) -> Iterator[None]:
    """A disk that fills up while the run writes: what is whole, and how to go on."""
    try:
        yield
    except Exception as error:
        if not _of_full_disk(error, run):
            raise
        last = newest(run)
        kept = f"{last.name} is whole" if last else "there is no checkpoint yet"
        told = OSError(
            f"{run}: no space is left on the disk; {kept}. Free some, then: cosformer train --out {run} --resume"
        )
        told.errno = errno.ENOSPC
        raise told from error


@contextmanager
def full_cache_told(cache: Path) -> Iterator[None]:
    """The same while data is prepared: there is no run yet that could go on."""
    try:
        yield
    except Exception as error:
        if not _of_full_disk(error, cache):
            raise
        told = OSError(
            f"{cache}: no space is left on the disk for prepared data; what is whole is kept. Free some, or name a "
            "folder on a larger disk with --cache"
        )
        told.errno = errno.ENOSPC
        raise told from error


def _of_full_disk(error: Exception, folder: Path) -> bool:
    # the package `tokenizers` has no kind of its own; where it learns in a process, that one's last words are told
    if type(error) is Exception or isinstance(error, ChildProcessError):
        return any(f"(os error {number})" in str(error) for number in FULL)
    if isinstance(error, OSError):
        return error.errno in FULL
    if isinstance(error, NotFinite | torch.OutOfMemoryError):
        return False
    # torch and safetensors say it in other words
    wordless = isinstance(error, RuntimeError | SafetensorError) and folder.is_dir()
    return wordless and shutil.disk_usage(folder).free <= NO_ROOM


def stored_recipe(run: Path) -> Recipe | None:
    path = run / RECIPE
    return read_recipe_file(path) if path.is_file() else None


def write_recipe(run: Path, recipe: Recipe) -> None:
    write_atomically(run / RECIPE, [recipe.toml().encode()])


def sweep_recipe(run: Path) -> None:
    """What a process left that was killed while it wrote the recipe, the first file of a run."""
    for path in run.glob(f"{RECIPE}.*{TEMPORARY}"):
        path.unlink()


def check_same(stored: Recipe, asked: Recipe) -> None:
    """Refuses to go on with a run by another recipe. Of the model, only what was asked for is compared."""
    wrong = [
        f"{name}={new!r} (the run has {old!r})" for name, (old, new) in differences(stored, asked).items()
        if not (name in MAY_MOVE and Path(old).name == Path(new).name)
    ]  # fmt: skip
    if wrong:
        raise ValueError(
            f"--resume with another recipe: {', '.join(wrong)}: it would be another run; leave these out, or start a "
            "new one (with model.init, if its weights are wanted)"
        )


def check_same_data(saved: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> None:
    """Refuses to go on with other text or another tokenizer than the checkpoint's (`RunData.identity`)."""
    for split, parts in saved.items():
        for what, was in parts.items():
            if (found := now[split][what]) != was:
                raise ValueError(
                    f"--resume: the {what} of the split {split!r} is not the one this run began with (hash {was[:12]}, "
                    f"now {found[:12]}): put back what it read (--data names where it lies now), or start a new run"
                )


def differences(
    stored: Recipe, asked: Recipe, free: Collection[str] = frozenset(FREE_TO_CHANGE)
) -> dict[str, tuple[Any, Any]]:
    """Fields that were asked for and that the other recipe has otherwise, but for those that are free to change."""
    old, new = _flat(stored), _flat(asked)
    changed = [name for name in new if name not in free and new[name] != old.get(name)]
    return {name: (old.get(name), new[name]) for name in changed}


def _flat(recipe: Recipe) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in recipe.table().items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": list(x) if isinstance(x, tuple) else x for key, x in value.items()}
        else:
            found[name] = value
    return found


def finish(run: Path, recipe: Recipe, summary: RunSummary, lines: list[dict[str, Any]]) -> None:
    write_atomically(run / CARD, [card(named(recipe), asdict(summary), lines).encode()])
    summary.write(run)  # last: where it is, the run is finished
    tidy(run)


def tidy(run: Path) -> None:
    """What only an unfinished run needs."""
    for name in (BEST, FINAL):
        shutil.rmtree(run / name, ignore_errors=True)


def put_in_place(run: Path, folder: Path) -> None:
    """Copies the files of a finished folder into the run, each whole; the folder stays until the run is closed."""
    for path in sorted(folder.iterdir()):
        scratch = run / f".{path.name}.{os.getpid()}.new.partial"
        shutil.copyfile(path, scratch)
        os.replace(scratch, run / path.name)
