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


def outcome_file(folder: Path, job: str) -> Path:
    return folder / "outcomes" / f"{job}.json"


def read_outcome(folder: Path, job: str) -> dict[str, Any] | None:
    path = outcome_file(folder, job)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def write_outcome(folder: Path, job: str, found: dict[str, Any]) -> None:
    path = outcome_file(folder, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [(json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode()])


def ended_without(folder: Path, job: str, state: str, why: str) -> None:
    write_outcome(folder, job, {"state": state, "why": " ".join(why.split())})


def measured(run: Path, summary: RunSummary, *, tested: bool, device: str, cache: Path) -> dict[str, Any]:
    """The numbers of a finished run: of its test split, or, where it is not tested, of periodic evaluation."""
    metric, better = METRICS[summary.task]
    split, numbers = "valid", summary.metrics
    if tested:
        result = evaluate(run, EvalSettings(), device=device, cache=cache)
        split, numbers = result["split"], result["metrics"]
    tokens_per_step = summary.tokens / summary.steps if summary.steps else None
    rate = summary.tokens_per_second
    return {
        "state": DONE, "why": "", "metric": metric, "better": better, "split": split, "value": numbers.get(metric),
        "low": numbers.get(f"{metric}_low"), "high": numbers.get(f"{metric}_high"),
        "examples": numbers.get("examples"), "valid": summary.metrics.get(metric), "best_step": summary.best_step,
        "steps": summary.steps, "steps_per_second": rate / tokens_per_step if rate and tokens_per_step else None,
        "tokens_per_second": rate, "memory_bytes": summary.memory_bytes, "parameters": summary.parameters,
        "seconds": summary.seconds, "share_waiting_for_data": _share(summary),
        "data": {name: part["text_sha256"] for name, part in summary.data["splits"].items()},
        "environment": summary.environment,
    }  # fmt: skip


def _share(summary: RunSummary) -> float | None:
    return summary.seconds_waiting_for_data / summary.seconds if summary.seconds else None
