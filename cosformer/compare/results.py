"""The result file of a sweep: a cell for every attention, mode, work and length; read, written whole, gone on with."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from cosformer.bench import environment
from cosformer.bench.report import write_json
from cosformer.bench.timing import summarize
from cosformer.compare.settings import BASELINES, MODES, WORKS, Sweep, sha256

NAME, BENCHMARK = "speed.json", "compare"
WAITING, DONE, NOT_TRIED = "waiting", "done", "not tried"
ENDS = ("out of memory", "slow", "killed")
"""States after which a longer sequence is not tried: it would end the same way."""
STATES = (WAITING, DONE, "refused", *ENDS, "failed", "wrong", NOT_TRIED)


class Key(NamedTuple):
    attention: str
    mode: str
    work: str
    length: int


@dataclass(slots=True)
class Cell:
    attention: str
    mode: str
    work: str
    length: int
    batch: int
    state: str = WAITING
    why: str = ""
    visits: int = 0
    samples: list[float] = field(default_factory=list)
    """Milliseconds of single calls, of all visits."""
    memory_bytes: int | None = None
    """Most at once during a call, beyond q, k, v and the gradient of the output."""

    @property
    def key(self) -> Key:
        return Key(self.attention, self.mode, self.work, self.length)

    @property
    def ms(self) -> float | None:
        return summarize(self.samples).ms if self.samples else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The middle half of the samples, in ms."""
        if not self.samples:
            return None
        time = summarize(self.samples)
        return time.low, time.high

    @property
    def us_per_token(self) -> float | None:
        ms = self.ms
        return None if ms is None else ms * 1e3 / (self.batch * self.length)

    @property
    def bytes_per_token(self) -> float | None:
        return None if self.memory_bytes is None else self.memory_bytes / (self.batch * self.length)


@dataclass(slots=True)
class Result:
    environment: dict[str, Any]
    settings: dict[str, Any]
    """What the numbers mean (`Sweep.meaning`)."""
    cells: dict[Key, Cell] = field(default_factory=dict)

    @classmethod
    def new(cls, sweep: Sweep) -> Self:
        return cls(environment=environment.provenance(sweep.device), settings=sweep.meaning())

    def cell(self, key: Key, batch: int) -> Cell:
        if key not in self.cells:
            self.cells[key] = Cell(*key, batch)
        return self.cells[key]

    def write(self, path: Path) -> None:
        ordered = sorted(self.cells.values(), key=lambda c: (MODES.index(c.mode), WORKS.index(c.work), c.length))
        cells = [
            asdict(cell) | ({"ms": cell.ms, "us_per_token": cell.us_per_token} if cell.samples else {})
            for cell in ordered
        ]
        content = {
            "benchmark": BENCHMARK, **self.environment, "settings": self.settings,
            "settings_sha256": sha256(self.settings), "cells": cells,
        }  # fmt: skip
        write_json(path, content)

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a file, or the folder it lies in."""
        path = path / NAME if path.is_dir() else path
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{path} is not there: `cosformer compare speed --out FOLDER` makes it") from error
        except ValueError as error:
            raise ValueError(f"{path} is not readable ({error})") from error
        if not isinstance(found, dict) or found.get("benchmark") != BENCHMARK:
            raise ValueError(f"{path} is no result of `cosformer compare speed`: name its folder or its {NAME}")
        try:
            result = cls.of_table(found)
            if odd := sorted({cell.state for cell in result.cells.values()} - set(STATES)):
                raise ValueError(f"cells that are {', '.join(odd)}")
            lost = next((cell for cell in result.cells.values() if cell.state == DONE and not cell.samples), None)
            if lost is not None:
                raise ValueError(f"{' '.join(map(str, lost.key))} is done without samples")
            return result
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged or of another version ({type(error).__name__}: {error})") from error

    @classmethod
    def of_table(cls, found: dict[str, Any]) -> Self:
        """From what a file holds."""
        names = Cell.__dataclass_fields__
        cells = [Cell(**{name: x for name, x in cell.items() if name in names}) for cell in found["cells"]]
        told = {name: found[name] for name in ("device", "date", "commit", "versions", "command")}
        return cls(environment=told, settings=found["settings"], cells={cell.key: cell for cell in cells})

    def check_same(self, sweep: Sweep, path: Path) -> None:
        """Refuses to add numbers that mean something else."""
        now = Result.new(sweep)
        mine = {"settings": self.settings, **{k: self.environment[k] for k in ("device", "commit", "versions")}}
        theirs = {"settings": now.settings, **{k: now.environment[k] for k in ("device", "commit", "versions")}}
        differ = [
            f"{name} {old!r}, now {new!r}"
            for part in ("settings", "versions")
            for name in sorted({*mine[part], *theirs[part]})
            if (old := mine[part].get(name)) != (new := theirs[part].get(name))
        ]
        differ += [f"{k} {mine[k]!r}, now {theirs[k]!r}" for k in ("device", "commit") if mine[k] != theirs[k]]
        if differ:
            raise ValueError(
                f"{path} holds a sweep that was measured otherwise ({'; '.join(differ)}), and numbers of both would "
                "not compare: name another folder with --out, or remove the file"
            )

    def lengths(self) -> list[int]:
        return sorted({cell.length for cell in self.cells.values()})

    def attentions(self) -> list[str]:
        """In the order of the file: ours and softmax lead."""
        return list(dict.fromkeys(cell.attention for cell in self.cells.values()))

    def of(self, attention: str, mode: str, work: str) -> list[Cell]:
        """By length."""
        found = [c for c in self.cells.values() if (c.attention, c.mode, c.work) == (attention, mode, work)]
        return sorted(found, key=lambda cell: cell.length)

    def baseline(self, mode: str, work: str, what: str) -> dict[int, float]:
        """By length, the least of softmax by any of its kernels; what: us_per_token or bytes_per_token."""
        found: dict[int, float] = {}
        for name in BASELINES:
            for cell in self.of(name, mode, work):
                value = getattr(cell, what)
                if value is not None:
                    found[cell.length] = min(value, found.get(cell.length, value))
        return found
