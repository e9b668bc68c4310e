"""One job in a process of its own: `python -m cosformer.sweeps.child FOLDER JOB DEVICE PARENT PARALLEL [tested]`.

So nothing that happens to it, out of memory least of all, happens to the queue. What it says goes to its log.
"""

import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

import torch

from cosformer.sweeps.jobs import job_file, run_folder
from cosformer.sweeps.outcomes import (
    FAILED,
    INTERRUPTED,
    SKIPPED,
    TAKEN,
    TESTED,
    ended_without,
    measured,
    write_outcome,
)
from cosformer.tasks import MissingPackage, Progress, SourceMissing
from cosformer.tasks.locks import only
from cosformer.tasks.shards.atomic import write_atomically
from cosformer.training import BadRecipe, NotFinite, Watch, train
from cosformer.training.recipe import read_recipe_file
from cosformer.training.recorder import restart_peak
from cosformer.training.run_folder import SUMMARY

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def die_with(parent: int) -> None:
    """A queue that is killed takes its jobs along: they would go on unseen, beside those of the next queue."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it died before this line
            os._exit(INTERRUPTED)


class Told(Watch):
    """Plain lines; the queue shows the last one."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.steps, self.shown = out, 0, ""

    def said(self, words: str) -> None:
        print(words, file=self.out, flush=True)

    def preparing(self, progress: Progress) -> None:
        share = (
            f"{min(1, progress.bytes / progress.expected):.0%}" if progress.expected else f"{progress.bytes:,} bytes"
        )
        share = "done" if progress.done else share  # what was expected is a guess, which need not be reached
        if share != self.shown:
            self.shown = share
            self.said(f"preparing {progress.split}: {share}")

    def starting(self, facts: dict[str, Any]) -> None:
        restart_peak()  # preparing the data was not this attention's doing, and the next job finds it prepared
        self.steps = facts["steps"]
        self.said(f"{facts['parameters']:,} parameters, {facts['device']}, from step {facts['start']:,}")

    def line(self, line: dict[str, Any]) -> None:
        if line["kind"] == "train":
            self.said(f"step {line['step']:,}/{self.steps:,}  loss {line['loss']:.4f}")
        elif line["kind"] == "eval":
            name = next(n for n in ("accuracy", "bits_per_byte", "perplexity", "loss") if n in line)
            self.said(
                f"step {line['step']:,}/{self.steps:,}  {line['split']} {name.replace('_', ' ')} {line[name]:.4f}"
            )


def do(folder: Path, job: str, device: str, *, parallel: int, tested: bool) -> int:
    """Trains, tests if it should, and leaves an outcome; an interrupted job leaves none, and goes on the next time."""
    recipe, run, cache = read_recipe_file(job_file(folder, job)), run_folder(folder, job), folder / "data-cache"
    try:
        parallel = _beside(folder, job, parallel)
        summary = train(recipe, run, resume=True, cache=cache, device=device, watch=Told(sys.stdout))
        if summary.interrupted:
            return INTERRUPTED
        where = "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
        found = measured(
            run, summary, tested=tested, path=recipe.data.path, device=where, cache=cache, parallel=parallel
        )
        write_outcome(folder, job, found)
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except (SourceMissing, MissingPackage) as error:
        ended_without(folder, job, SKIPPED, str(error))
    except BadRecipe as error:  # such as an attention that cannot do the task
        ended_without(folder, job, SKIPPED, f"refused: {error}")
    except (torch.OutOfMemoryError, MemoryError):
        traceback.print_exc()
        ended_without(folder, job, FAILED, "out of memory")
    except NotFinite as error:
        ended_without(folder, job, FAILED, str(error))
    except Exception as error:
        traceback.print_exc()
        ended_without(folder, job, FAILED, f"{type(error).__name__}: {error}")
    return 1


def _beside(folder: Path, job: str, parallel: int) -> int:
    """How many jobs ran at once while this one was trained: a later queue, of one at a time, may only test it."""
    path = job_file(folder, job).with_suffix(".parallel")
    if not (run_folder(folder, job) / SUMMARY).is_file():
        write_atomically(path, [str(parallel).encode()])
    return int(path.read_text()) if path.is_file() else parallel


def main() -> None:
    folder, job, device, parent = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    die_with(parent)
    try:  # two processes would write one run
        with only(job_file(folder, job).with_name(f".{job}.lock")):
            code = do(folder, job, device, parallel=int(sys.argv[5]), tested=sys.argv[6:] == [TESTED])
    except BlockingIOError:
        code = TAKEN
    sys.exit(code)


if __name__ == "__main__":
    main()
