"""Why a checkpoint does not load: which file, which tensor. Reads the headers of safetensors files and nothing else."""

import json
from math import prod
from pathlib import Path
from typing import NamedTuple

from torch import nn

NAMED = 8  # tensors a message names before it counts the rest


class Entry(NamedTuple):
    """A tensor as the header of its file describes it."""

    file: Path
    shape: tuple[int, ...]
    end: int
    """Where its bytes end, counted from the start of the file."""


def read_headers(folder: Path) -> dict[str, Entry]:
    """What the safetensors files of a checkpoint say they hold. Raises ValueError where a header itself is broken."""
    entries: dict[str, Entry] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            raw = stream.read(length)
        try:
            if len(raw) < length:
                raise ValueError("it ends inside its header")
            header = json.loads(raw)
        except ValueError as error:
            raise ValueError(f"{file.name} has no readable header ({error}): download or copy it again") from error
        header.pop("__metadata__", None)
        for name, value in header.items():
            entries[name] = Entry(file, tuple(value["shape"]), 8 + length + value["data_offsets"][1])
    return entries


def explain(folder: Path, model: nn.Module) -> str | None:
    """What is wrong with the files in `folder` for `model` (which may be on meta); None: nothing that shows here."""
    try:
        entries = read_headers(folder)
    except ValueError as error:
        return str(error)
    cut: dict[Path, list[str]] = {}
    for name, entry in entries.items():
        if entry.end > entry.file.stat().st_size:
            cut.setdefault(entry.file, []).append(name)
    if cut:
        parts = [f"{file.name} is cut short and lacks all or part of {_some(names)}" for file, names in cut.items()]
        return "; ".join(parts) + ": download or copy it again, and from_pretrained will find it whole"
    wrong = []
    for name, p in model.state_dict().items():
        entry = entries.get(name) or entries.get(f"model.{name}") or entries.get(name.removeprefix("model."))
        if entry is not None and entry.shape != tuple(p.shape) and prod(entry.shape) != 0:
            wrong.append(f"{name} is {list(entry.shape)} in {entry.file.name} but {list(p.shape)} in the model")
    if wrong:
        return (
            _some(wrong) + ": the config describes another model; load it with the config saved beside the weights, or "
            "pass ignore_mismatched_sizes=True to draw these anew"
        )
    return None


def _some(names: list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
