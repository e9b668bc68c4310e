"""The table of a queue: a cell for each job, a row for each group and variant with its mean over seeds."""

import json
import math
import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from cosformer.bench.environment import provenance
from cosformer.sweeps.jobs import QUEUE, Job, run_folder
from cosformer.sweeps.outcomes import DONE, read_outcome
from cosformer.tasks.locks import held
from cosformer.tasks.shards.atomic import write_atomically
from cosformer.training.run_folder import RECIPE

TABLE = "table.json"
LABEL = ("group", "variant", "seed", "run")
"""Of a cell: which job it is."""
WAITING, RUNNING, STOPPED = "waiting", "running", "interrupted"
# Student's t for 95% by degrees of freedom 1 … 10; beyond, the next lower of these would hardly differ
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def cells_of(folder: Path, jobs: Sequence[Job], running: Collection[str] = ()) -> list[dict[str, Any]]:
    """Of these jobs, and of those before them that the folder's table has and that were begun.

    running: names of the jobs that a process is at now.
    """
    now = {job.name: (job.group, job.variant, job.seed, job.name) for job in jobs}
    found = []
    for name, label in {**_labels_before(folder), **now}.items():
        outcome = read_outcome(folder, name)
        if outcome is None:
            begun = (run_folder(folder, name) / RECIPE).is_file()
            if not begun and name not in now:
                continue
            outcome = {"state": RUNNING if name in running else STOPPED if begun else WAITING, "why": ""}
        found.append({**outcome, **dict(zip(LABEL, label, strict=True))})
    return found


def _labels_before(folder: Path) -> dict[str, tuple[Any, ...]]:
    """By name, the jobs of the table that lies there; of a damaged one, which is written anew, none."""
    try:
        cells = json.loads((folder / TABLE).read_text(encoding="utf-8"))["cells"]
        return {cell["run"]: tuple(cell[name] for name in LABEL) for cell in cells}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def rows_of(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds that are done; their interval, or where there is one seed, that of its examples."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["group"], cell["variant"]), []).append(cell)
    rows = []
    for (group, variant), members in groups.items():
        done = [cell for cell in members if cell["state"] == DONE and cell["value"] is not None]
        row: dict[str, Any] = {"group": group, "variant": variant, "seeds": len(done), "planned": len(members)}
        if done:
            metric = done[-1]["metric"]
            # bits per byte of an earlier version and perplexity of this one (words unknown) have no mean
            done = [cell for cell in done if cell["metric"] == metric]
            row["seeds"], values = len(done), [cell["value"] for cell in done]
            low, high = interval(values, metric) if len(done) > 1 else (done[0]["low"], done[0]["high"])
            row |= {name: done[0][name] for name in ("metric", "better", "split", "steps", "parameters")}
            row |= {
                "value": statistics.fmean(values), "low": low, "high": high,
                "steps_per_second": _median(done, "steps_per_second"), "memory_bytes": _median(done, "memory_bytes"),
            }  # fmt: skip
        not_done = [cell for cell in members if cell["state"] != DONE]
        row |= {"state": DONE if not not_done else not_done[0]["state"], "why": not_done[0]["why"] if not_done else ""}
        rows.append(row)
    return rows


def interval(values: Sequence[float], metric: str = "") -> tuple[float, float]:
    """95% for the mean of a few runs, by Student's t; of an accuracy, within 0 and 1."""
    half = STUDENT[min(len(values) - 1, len(STUDENT)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    low, high = mean - half, mean + half
    return (max(0.0, low), min(1.0, high)) if metric == "accuracy" else (low, high)


def _median(cells: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [cell[name] for cell in cells if cell[name] is not None]
    return statistics.median(values) if values else None


def collect(
    folder: Path, jobs: Sequence[Job], *, name: str, parallel: int = 1, running: Collection[str] = ()
) -> dict[str, Any]:
    """table.json, whole: `cells`, `table`, what the runs have in common and what they were measured on."""
    cells = cells_of(folder, jobs, running)
    done = [cell for cell in cells if cell["state"] == DONE]
    places = [cell.pop("environment") for cell in done]
    for cell, place in zip(done, places, strict=True):
        cell |= {"commit": place["commit"], "device": place["device"]}
    found = {
        "benchmark": "queue", "kind": "queue", "name": name,
        "environment": {**places[0], "command": provenance("cpu")["command"]} if places else provenance("cpu"),
        "settings": {
            "parallel": max([parallel, *(cell["parallel"] for cell in done)]),
            **{f"{name}s": list(dict.fromkeys(cell[name] for cell in cells)) for name in ("group", "variant", "seed")},
        },
        "cells": cells, "table": rows_of(cells),
    }  # fmt: skip
    write_atomically(folder / TABLE, [(json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode()])
    return found


def read_table(path: Path) -> dict[str, Any]:
    """Of a queue's folder, or a file that was kept. Rows are made anew from the cells: they say the same."""
    folder, path = (path, path / TABLE) if path.is_dir() else (None, path)
    if not path.is_file():
        raise ValueError(f"{path} is not there: name the folder of a queue, or its {TABLE}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(found, dict) or found.get("kind") != "queue":
        raise ValueError(f"{path} is no table of a queue: `cosformer lra run` writes one")
    try:
        settings = found["settings"]
        lists = [list(settings[name]) for name in ("groups", "variants", "seeds")]
        if not all(lists) or not isinstance(settings["parallel"], int) or not isinstance(found["name"], str):
            raise ValueError("settings")
        for cell in found["cells"]:
            if cell["state"] == RUNNING and (folder is None or not held(folder / QUEUE)):
                cell["state"] = STOPPED  # the queue was killed before it could say so
        return {**found, "table": rows_of(found["cells"])}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged or of another version ({type(error).__name__}: {error}): the command that made the "
            "queue, given again, writes it anew"
        ) from error


def merged(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several tables, such as of queues of a task each, as one. Where a run is in more than one, that done counts."""
    if len(tables) == 1:
        return tables[0]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in (cell for table in tables for cell in table["cells"]):
        key = (cell["group"], cell["variant"], cell["seed"])
        before = found.get(key)
        if before is not None and before["state"] == cell["state"] == DONE and before != cell:
            raise ValueError(
                f"two tables have {cell['group']} {cell['variant']} of seed {cell['seed']}: name one of them"
            )
        if before is None or before["state"] != DONE:
            found[key] = cell
    cells, first = list(found.values()), tables[0]
    settings = {f"{name}s": list(dict.fromkeys(cell[name] for cell in cells)) for name in ("group", "variant", "seed")}
    settings["parallel"] = max(table["settings"]["parallel"] for table in tables)
    return {**first, "settings": {**first["settings"], **settings}, "cells": cells, "table": rows_of(cells)}


def places(found: dict[str, Any]) -> str:
    """Which groups were measured where, if not all in one place."""
    by_device: dict[str, dict[str, None]] = {}
    for cell in found.get("cells", []):
        if cell["state"] == DONE and "device" in cell:
            by_device.setdefault(cell["device"], {})[cell["group"]] = None
    if len(by_device) < 2:
        return ""
    return "; ".join(f"{', '.join(groups)} on {device}" for device, groups in by_device.items())


def beside(found: dict[str, Any]) -> str:
    """What must be said of speed where runs shared the machine, or nothing."""
    others = found["settings"]["parallel"] - 1
    return f"steps/s with up to {others} other run{'s' if others > 1 else ''} beside" if others else ""


def heading(found: dict[str, Any], group: str) -> str:
    """A group with what its numbers are: listops (test accuracy)."""
    for row in found["table"]:
        if row["group"] == group and "value" in row:
            return f"{group} ({row['split']} {row['metric'].replace('_', ' ')})"
    return group


def shown(row: dict[str, Any]) -> str:
    """A row's number for people: 37.9% (36.0–39.9), or why there is none; and why a seed is missing."""
    reason = row["state"] + (f": {row['why']}" if row["why"] else "")
    if "value" not in row:
        return reason
    percent = row["metric"] == "accuracy"

    def one(value: float) -> str:
        if percent:
            return f"{value * 100:.1f}"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

    spread = f" ({one(row['low'])}–{one(row['high'])})" if row["low"] is not None else ""
    missing = f"; of {row['planned']} seeds {row['seeds']} done, one {reason}" if row["state"] != DONE else ""
    return one(row["value"]) + ("%" if percent else "") + spread + missing


def markdown_table(found: dict[str, Any]) -> str:
    """Groups across, variants down; steps per second and memory of each group beside its number."""
    groups = found["settings"]["groups"]
    rows = {(row["group"], row["variant"]): row for row in found["table"]}
    lines = ["| | " + " | ".join(heading(found, group) for group in groups) + " |", "|---|" + "---:|" * len(groups)]
    for variant in found["settings"]["variants"]:
        cells = []
        for group in groups:
            row = rows.get((group, variant))
            text = shown(row) if row else ""
            if row and row.get("steps_per_second"):
                text += f"; {row['steps_per_second']:.1f} steps/s"
            if row and row.get("memory_bytes"):
                text += f", {row['memory_bytes'] / 2**20:,.0f} MiB"
            cells.append(text.replace("|", "\\|"))
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    for words in (beside(found), places(found)):
        if words:
            lines += ["", f"{words[0].upper()}{words[1:]}."]
    return "\n".join(lines) + "\n"
