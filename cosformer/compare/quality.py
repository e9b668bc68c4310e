"""How good each attention is: rows from queues of trainings, result files of matched runs, and run folders."""

import hashlib
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cosformer.report.reading import SUMMARY, read_run

TABLE = "table.json"
METRICS = {"accuracy": "higher", "bleu": "higher", "bits_per_byte": "lower", "perplexity": "lower", "loss": "lower"}
"""What is told of a run: the first of these that it has."""
SPLITS = ("test", "valid")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One variant of one task; `value` is the mean over seeds."""

    group: str
    variant: str
    metric: str = ""
    better: str = "higher"
    split: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    steps_per_second: float | None = None
    tokens_per_second: float | None = None
    memory_bytes: int | None = None
    parallel: int = 1
    """Runs at once on the machine: above 1, its speed is that of a shared one."""
    state: str = "done"
    why: str = ""
    source: str = ""


@dataclass(slots=True)
class Quality:
    rows: list[Row] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    """Name and sha256 of every file that was read."""

    def groups(self) -> list[str]:
        return list(dict.fromkeys(row.group for row in self.rows))


def read_quality(paths: Iterable[Path]) -> Quality:
    """Files and folders as named; what is none of the three kinds is refused."""
    found = Quality()
    single: list[Row] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there: name a {TABLE}, a result file of runs, or a run folder")
        if path.is_file():
            rows = _file(path, found)
            if rows is None:
                raise ValueError(
                    f"{path} tells no quality: it is neither the {TABLE} of a queue nor a file of docs/run_results.py"
                )
            found.rows += rows
            continue
        folders = [path] if _holds(path) else sorted(p for p in path.iterdir() if p.is_dir() and _holds(p))
        files = [] if folders else sorted(path.glob("*.json"))
        kept = [rows for file in files if (rows := _file(file, found)) is not None]
        if not folders and not kept:
            raise ValueError(f"{path} holds no {TABLE}, no run and no result file of runs: name a folder that does")
        found.rows += [row for rows in kept for row in rows]
        for folder in folders:
            if (folder / TABLE).is_file():
                found.rows += _file(folder / TABLE, found) or []
            else:
                single.append(_run(folder, found))
    found.rows = by_one_measure([*found.rows, *joined(single)])
    return found


def committed(results: Path) -> Quality:
    """Those of a folder of result files that tell quality; there may be none."""
    found = Quality()
    for path in sorted(results.glob("*.json")):
        found.rows += _file(path, found) or []
    return found


def by_one_measure(rows: list[Row]) -> list[Row]:
    """A group for each metric: bits per byte beside perplexity (where words are unknown) would rank as one number."""
    first: dict[str, str] = {}
    for row in rows:
        if row.metric:
            first.setdefault(row.group, row.metric)
    return [
        replace(row, group=f"{row.group}, {row.metric.replace('_', ' ')}")
        if row.metric and row.metric != first[row.group]
        else row
        for row in rows
    ]


def joined(rows: list[Row]) -> list[Row]:
    """Runs that differ in nothing but their seed, as one row: the mean, and its 95% interval by Student's t."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.group, row.variant, row.metric, row.split, row.state), []).append(row)
    return [_mean(same) if len(same) > 1 and same[0].value is not None else same[0] for same in groups.values()]


def _mean(same: list[Row]) -> Row:
    from cosformer.sweeps.table import interval  # needs what training needs; a page without runs does not

    values = [row.value for row in same if row.value is not None]
    low, high = interval(values, same[0].metric)

    def mean(name: str) -> float | None:
        found = [x for row in same if (x := getattr(row, name)) is not None]
        return statistics.fmean(found) if found else None

    first, memory = same[0], [row.memory_bytes for row in same if row.memory_bytes is not None]
    return Row(
        group=first.group, variant=first.variant, metric=first.metric, better=first.better, split=first.split,
        value=statistics.fmean(values), low=low, high=high, seeds=len(values),
        steps_per_second=mean("steps_per_second"), tokens_per_second=mean("tokens_per_second"),
        memory_bytes=max(memory, default=None), parallel=max(row.parallel for row in same),
        source=", ".join(dict.fromkeys(row.source for row in same)),
    )  # fmt: skip


def _holds(folder: Path) -> bool:
    return (folder / TABLE).is_file() or (folder / "recipe.toml").is_file()


def _file(path: Path, found: Quality) -> list[Row] | None:
    """None: a file of another kind."""
    raw = path.read_bytes()
    try:
        content = json.loads(raw)
    except ValueError as error:
        raise ValueError(f"{path} is not readable ({error})") from error
    rows = None
    if isinstance(content, dict):
        try:
            if content.get("kind") == "queue":
                rows = _queue(content, path.name)
            elif content.get("benchmark") == "training runs":
                rows = _matched(content, path.name)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged or of another version ({type(error).__name__}: {error})") from error
    if rows is not None:
        _note(path, raw, found)
    return rows


def _note(path: Path, raw: bytes, found: Quality) -> None:
    name = path.name if path.name not in (TABLE, SUMMARY) else f"{path.parent.name}/{path.name}"
    found.inputs.append((name, hashlib.sha256(raw).hexdigest()))


def _queue(content: dict[str, Any], source: str) -> list[Row]:
    cells = content.get("cells", [])
    rows = []
    for line in content["table"]:
        mine = [c for c in cells if (c["group"], c["variant"]) == (line["group"], line["variant"])]
        rates = [c["tokens_per_second"] for c in mine if c.get("tokens_per_second")]
        names = ("metric", "better", "value", "low", "high", "seeds", "steps_per_second", "memory_bytes", "why")
        told = {name: line[name] for name in names if line.get(name) is not None}
        rows.append(Row(
            group=line["group"], variant=line["variant"], state=line.get("state") or "done",
            tokens_per_second=line.get("tokens_per_second") or (statistics.fmean(rates) if rates else None),
            split=next((c["split"] for c in mine if c.get("split")), ""), source=content.get("name") or source,
            parallel=max((c.get("parallel") or 1 for c in mine), default=1), **told,
        ))  # fmt: skip
    return rows


def _matched(content: dict[str, Any], source: str) -> list[Row]:
    """A file of docs/run_results.py: runs of one recipe, and the fields in which they differ."""
    rows, runs = [], content["runs"]
    differ = [field for field in content["differ_in"] if field not in ("seed", "name", "about", "model.attention")]
    attentions = {
        name: run.get("model.attention") or content["recipe"].get("model.attention") for name, run in runs.items()
    }
    # such as the run that each starts from, of its own attention
    told = {field for field in differ if len({_without(run.get(field), attentions[n]) for n, run in runs.items()}) == 1}
    for name, run in runs.items():
        attention = attentions[name]
        own = {field: run.get(field) for field in differ if field not in told}
        rest = [f"{field.rpartition('.')[2]} {value}" for field, value in own.items() if not _shown(value, attention)]
        variant = ", ".join([_kinds(attention), *rest]) if attention else name
        metrics, split = _metrics(run)
        recipe = content["recipe"].get("name") or run.get("name") or source
        rows.append(_row(metrics, split, group=str(recipe), variant=variant, source=source, run=run))
    return joined(rows)


def _without(value: Any, attention: Any) -> str:
    """What a field says beside the name of the attention."""
    return str(value).replace(_kinds(attention), "…") if attention else str(value)


def _shown(value: Any, attention: Any) -> bool:
    """Whether the name of the attention says it already."""
    return value is None or value == attention or isinstance(value, dict | list)


def _kinds(attention: Any) -> str:
    return attention if isinstance(attention, str) else " + ".join(dict.fromkeys(attention))


def _metrics(run: dict[str, Any]) -> tuple[dict[str, Any], str]:
    for split in SPLITS:
        if found := run.get("evaluations", {}).get(split, {}).get("metrics"):
            return found, split
    return run.get("metrics") or {}, "held out"


def _run(folder: Path, found: Quality) -> Row:
    run = read_run(folder)
    attention = run.recipe.get("model", {}).get("attention", "cosformer")
    if run.summary is None:
        why = f"{folder.name} is not finished"
        return Row(group=run.name, variant=_kinds(attention), state="waiting", why=why, source=folder.name)
    _note(folder / SUMMARY, (folder / SUMMARY).read_bytes(), found)
    told = dict(run.summary)
    told["evaluations"] = {}
    for split in SPLITS:
        path = folder / f"eval-{split}.json"
        if path.is_file():
            told["evaluations"][split] = json.loads(path.read_text(encoding="utf-8"))
    metrics, split = _metrics(told)
    return _row(metrics, split, group=run.name, variant=_kinds(attention), source=folder.name, run=told)


def _row(metrics: dict[str, Any], split: str, *, group: str, variant: str, source: str, run: dict[str, Any]) -> Row:
    metric = next((name for name in METRICS if isinstance(metrics.get(name), int | float)), None)
    if metric is None:
        return Row(group=group, variant=variant, state="failed", why="it has no held-out number", source=source)
    rate, tokens = run.get("tokens_per_second"), run.get("tokens")
    return Row(
        group=group, variant=variant, metric=metric, better=METRICS[metric], split=split, value=metrics[metric],
        low=metrics.get(f"{metric}_low"), high=metrics.get(f"{metric}_high"), seeds=1,
        steps_per_second=rate * run["steps"] / tokens if rate and tokens else None, tokens_per_second=rate,
        memory_bytes=run.get("memory_bytes"), parallel=run.get("parallel") or 1, source=source,
    )  # fmt: skip
