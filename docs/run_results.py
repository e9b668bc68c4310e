"""Collects finished runs into one result file, with their curves: `python docs/run_results.py FILE.json RUN RUN …`.

Each run must be of the same recipe and data; what they differ in is said. `--plot FILE.png` draws the held-out curves.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from cosformer.bench.report import write_json, write_whole
from cosformer.training import read_metrics
from cosformer.training.run_folder import SUMMARY, RunSummary, stored_recipe

POINTS = 200  # of a training curve
PLACES = ("data.path", "data.valid_path", "data.test_path", "model.init")
CURVES = ("bits_per_byte", "perplexity", "accuracy", "loss")


def collected(runs: list[Path]) -> dict[str, Any]:
    """What the runs share, then each of them: settings that differ, metrics, evaluations, curves."""
    recipes = {run.name: flat(run) for run in runs}
    names = {name for values in recipes.values() for name in values}
    differ = sorted(n for n in names if len({json.dumps(v.get(n)) for v in recipes.values()}) > 1)
    summaries = {run.name: RunSummary.read(run) for run in runs}
    first = next(iter(summaries.values()))
    for name, summary in summaries.items():
        if summary.data["splits"] != first.data["splits"]:
            raise ValueError(f"{name} has other data than {runs[0].name}: their numbers cannot be compared")
    shared = {n: v for n, v in recipes[runs[0].name].items() if n not in differ}
    return {
        "benchmark": "training runs", **first.environment, "recipe": shared, "data": first.data,
        "differ_in": differ,
        "runs": {
            run.name: one(run, summaries[run.name], {n: recipes[run.name].get(n) for n in differ}) for run in runs
        },
    }  # fmt: skip


def flat(run: Path) -> dict[str, Any]:
    recipe = stored_recipe(run)
    if recipe is None or not (run / SUMMARY).is_file():
        raise ValueError(f"{run} holds no finished run: end it with `cosformer train --out {run} --resume`")
    found: dict[str, Any] = {}
    for name, value in recipe.table().items():
        if isinstance(value, dict):
            found |= {f"{name}.{field}": x for field, x in value.items()}
        else:
            found[name] = value
    for name in PLACES:  # where files lay on one machine is nobody else's business: their names say which they are
        value = found[name]
        found[name] = Path(value).name if isinstance(value, str) else [Path(x).name for x in value]
    return found


def one(run: Path, summary: RunSummary, own: dict[str, Any]) -> dict[str, Any]:
    lines = read_metrics(run)
    training = [[line["step"], line["loss"]] for line in lines if line["kind"] == "train"]
    step = -(-len(training) // POINTS) or 1
    evaluations = {
        path.stem.removeprefix("eval-"): json.loads(path.read_text()) for path in sorted(run.glob("eval-*.json"))
    }
    return {
        **own, "command": summary.environment["command"], "commit": summary.environment["commit"],
        "parameters": summary.parameters, "steps": summary.steps, "tokens": summary.tokens, "seconds": summary.seconds,
        "tokens_per_second": summary.tokens_per_second, "share_of_peak": summary.share_of_peak,
        "memory_bytes": summary.memory_bytes, "parallel": at_once(run),
        "seconds_apart": {
            name: getattr(summary, f"seconds_{name}")
            for name in ("waiting_for_data", "logging", "evaluating", "saving")
        },
        "best_step": summary.best_step, "metrics": summary.metrics,
        "evaluations": {
            name: {k: found[k] for k in ("metrics", "how", "precision")} for name, found in evaluations.items()
        },
        "held_out": [
            {k: line[k] for k in ("step", *CURVES) if k in line} for line in lines if line["kind"] == "eval"
        ],
        "training_loss": training[::step],
        "samples": [{k: x[k] for k in ("step", "prompt", "text")} for x in lines if x["kind"] == "sample"][-4:],
    }  # fmt: skip


def at_once(run: Path) -> int:
    """How many runs shared the machine: a queue writes it down."""
    told = run.parent.parent / "jobs" / f"{run.name}.parallel"
    return int(told.read_text()) if told.is_file() else 1


def plot(path: Path, result: dict[str, Any]) -> None:
    import io

    import matplotlib.pyplot as plt

    runs = result["runs"]
    curve = next(c for c in CURVES if all(c in x for run in runs.values() for x in run["held_out"]))
    figure, axis = plt.subplots(figsize=(6.4, 3.8))
    for name, run in runs.items():
        axis.plot([x["step"] for x in run["held_out"]], [x[curve] for x in run["held_out"]], marker=".", label=name)
    axis.set(xlabel="steps", ylabel=f"held-out {curve.replace('_', ' ')}", title=result["recipe"]["name"])
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    plt.close(figure)
    write_whole(path, buffer.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    gathered = collected(given.runs)
    write_json(given.out, gathered)
    if given.plot:
        plot(given.plot, gathered)
    print(f"wrote {given.out}")
