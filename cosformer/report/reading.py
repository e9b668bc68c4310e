"""What a report knows: the files of a run folder, finished or not, and what the demo measured beside it."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECIPE, METRICS, SUMMARY, DEMO = "recipe.toml", "metrics.jsonl", "run.json", "demo.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    folder: Path
    recipe: dict[str, Any]
    lines: list[dict[str, Any]]
    """Of metrics.jsonl."""
    summary: dict[str, Any] | None
    """run.json; None: the run is not finished."""
    demo: dict[str, Any] | None
    """demo.json; None: the run is no demo."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def name(self) -> str:
        return str(self.recipe.get("name") or self.folder.name)

    @property
    def metric(self) -> str:
        """What the held-out curve shows: the first of these that the run measured last."""
        evals = self.of("eval")
        for name in ("bits_per_byte", "accuracy", "perplexity"):
            if evals and name in evals[-1]:
                return name
        return "loss"

    @property
    def result(self) -> dict[str, Any]:
        """The held-out numbers of the model in the folder: the run's own summary, else the last evaluation."""
        if self.summary is not None:
            return self.summary.get("metrics") or {}
        evals = self.of("eval")
        return {k: v for k, v in evals[-1].items() if k not in ("kind", "step", "split")} if evals else {}


def read_run(folder: Path) -> Run:
    """Refuses what is no run folder. A last line that is being written is left out."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: name one that `cosformer train` made")
    for name in (RECIPE, METRICS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} has no {name}: it is no run; name a folder that `cosformer train` made")
    try:
        recipe = tomllib.loads((folder / RECIPE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / RECIPE} is not readable ({error})") from error
    return Run(
        folder=folder, recipe=recipe, lines=_lines(folder / METRICS), summary=_json(folder / SUMMARY),
        demo=_json(folder / DEMO),
    )  # fmt: skip


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for number, raw in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            line = json.loads(raw)
            if not (isinstance(line, dict) and line.keys() >= {"kind", "step"}):
                raise ValueError("it has no kind and step")
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is no line of metrics ({error}): the file is damaged") from error
        found.append(line)
    return found


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable ({error})") from error
