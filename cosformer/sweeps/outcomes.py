"""What came of a job: a small file, written whole when the job ends; where there is none, the job is still to do."""

import json
from pathlib import Path
from typing import Any

from cosformer.tasks.shards.atomic import write_atomically
from cosformer.training.evaluation import EvalSettings, evaluate
from cosformer.training.run_folder import RunSummary

DONE, SKIPPED, FAILED = "done", "skipped", "failed"
TESTED = "tested"
"""The last argument of a job that is tested at its end."""
INTERRUPTED, TAKEN = 130, 75
"""Exit codes of a job that leaves no outcome: stopped with a checkpoint; another process is at it."""
METRICS = {
    "classify": ("accuracy", "higher"), "lm": ("bits_per_byte", "lower"), "mlm": ("perplexity", "lower"),
    "translate": ("bleu", "higher"),
}  # fmt: skip
"""Of each task: what is compared, and which way is better."""
MEASURED = (
    "why", "metric", "better", "split", "value", "low", "high", "examples", "valid", "best_step", "steps",
    "steps_per_second", "tokens_per_second", "memory_bytes", "parameters", "parallel", "environment",
)  # fmt: skip
"""What the outcome of a job that is done tells at least."""


def outcome_file(folder: Path, job: str) -> Path:
    return folder / "outcomes" / f"{job}.json"


def read_outcome(folder: Path, job: str) -> dict[str, Any] | None:
    path = outcome_file(folder, job)
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        wanted = MEASURED if found["state"] == DONE else ("why",)
        if lost := [name for name in wanted if name not in found]:
            raise KeyError(lost[0])
    except (ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path} is damaged or of another version ({why}): remove it and start again; a run that is finished is "
            "tested once more, not trained"
        ) from error
    return found


def write_outcome(folder: Path, job: str, found: dict[str, Any]) -> None:
    path = outcome_file(folder, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [(json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode()])


def ended_without(folder: Path, job: str, state: str, why: str) -> None:
    write_outcome(folder, job, {"state": state, "why": " ".join(why.split())})


def measured(
    run: Path, summary: RunSummary, *, tested: bool, path: tuple[str, ...], device: str, cache: Path, parallel: int
) -> dict[str, Any]:
    """The numbers of a finished run: of its test split, or, where it is not tested, of periodic evaluation.

    path: where the data lies now; it may have moved since the run was trained. parallel: how many ran at once.
    """
    split, numbers = "valid", summary.metrics
    if tested:
        result = evaluate(run, EvalSettings(path=path), device=device, cache=cache)
        split, numbers = result["split"], result["metrics"]
    metric, better = METRICS[summary.task]
    if "unknown_share" in numbers:  # of text whose words became <unk> there are no bits per byte
        metric, better = "perplexity", "lower"
    tokens_per_step = summary.tokens / summary.steps if summary.steps else None
    rate = summary.tokens_per_second
    return {
        "state": DONE, "why": "", "metric": metric, "better": better, "split": split, "value": numbers.get(metric),
        "low": numbers.get(f"{metric}_low"), "high": numbers.get(f"{metric}_high"),
        "examples": numbers.get("examples"), "valid": summary.metrics.get(metric), "best_step": summary.best_step,
        "steps": summary.steps, "steps_per_second": rate / tokens_per_step if rate and tokens_per_step else None,
        "tokens_per_second": rate, "memory_bytes": summary.memory_bytes, "parameters": summary.parameters,
        "seconds": summary.seconds, "share_waiting_for_data": _share(summary),
        "parallel": parallel, "environment": summary.environment,
        "data": {name: part["text_sha256"] for name, part in summary.data["splits"].items()},
    }  # fmt: skip


def _share(summary: RunSummary) -> float | None:
    return summary.seconds_waiting_for_data / summary.seconds if summary.seconds else None
