"""Checkpoints that are whole or not there, and the same for one process, DDP and FSDP2: whole tensors by name."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cosformer.tasks.shards.atomic import sync_folder

NAME = re.compile(r"checkpoint-(\d+)")
OPTIMIZER, PROGRESS, TRAINER_STATE = "optimizer.pt", "progress.json", "trainer_state.json"


def checkpoints(run: Path) -> list[Path]:
    """Those of a run, oldest first. Under their names they are whole: they were renamed when finished."""
    found = [(int(match[1]), path) for path in run.glob("checkpoint-*") if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def newest(run: Path) -> Path | None:
    found = checkpoints(run)
    return found[-1] if found else None


def step_of(checkpoint: Path) -> int:
    match = NAME.fullmatch(checkpoint.name)
    assert match is not None
    return int(match[1])


def sweep(run: Path) -> None:
    """What killed writers left; a folder that was about to be replaced gets its name back."""
    for path in run.glob(".*.partial"):
        name, _, rest = path.name.removeprefix(".").partition(".")
        if rest.endswith("old.partial") and not (run / name).exists():
            os.replace(path, run / name)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def whole(x: Any) -> Any:
    """A sharded tensor gathered (by all processes together); any other as it is. On the CPU."""
    x = x.full_tensor() if hasattr(x, "full_tensor") else x
    return x.detach().cpu() if isinstance(x, Tensor) else x


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """What is tied is gathered once and stays one tensor, or it would be written under each of its names."""
    state = model.state_dict(keep_vars=True)
    gathered = {id(value): whole(value) for value in state.values()}
    return {name: gathered[id(value)] for name, value in state.items()}


def optimizer_state(model: nn.Module, optimizer: Any) -> dict[str, dict[str, Any]]:
    """What the optimizer knows of each parameter, by the parameter's name."""
    state = optimizer.state
    return {
        name: {key: whole(value) for key, value in state[p].items()}
        for name, p in model.named_parameters()
        if p in state
    }


def load_model_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Into a model that may be sharded; tied tensors are saved once."""
    there = dict(model.state_dict(keep_vars=True))
    saved = {id(there[name]) for name in state if name in there}
    lost = sorted(name for name, value in there.items() if name not in state and id(value) not in saved)
    more = sorted(set(state) - set(there))
    if lost or more:
        names = ", ".join([*lost[:3], *more[:3]])
        raise ValueError(f"the checkpoint is of another model ({names} is in one and not the other): start a new run")
    with torch.no_grad():
        for name, value in state.items():
            there[name].copy_(_placed(value, there[name]))


def load_optimizer_state(model: nn.Module, optimizer: Any, state: Mapping[str, Mapping[str, Any]]) -> None:
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    for name, p in model.named_parameters():
        if name not in state:
            raise ValueError(
                f"the checkpoint's optimizer knows nothing of {name}: it is another model's; start a new run"
            )
        inner.state[p] = {key: _beside(value, p, key) for key, value in state[name].items()}


def _placed(value: Tensor, like: Tensor) -> Tensor:
    if hasattr(like, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)  # pyright: ignore[reportAttributeAccessIssue]
    return value


def _beside(value: Any, p: Tensor, key: str) -> Any:
    """Moments lie where their parameter does; a counter of steps where the optimizer counts."""
    if not isinstance(value, Tensor):
        return value
    if value.shape == p.shape and key != "step":
        return _placed(value.to(p.device), p)
    return value.to(p.device) if p.device.type == "cuda" else value.clone()


def write_folder(target: Path, write: Callable[[Path], object]) -> None:
    """`write(folder)` fills a folder beside `target`, which then takes its name at once. What was there before goes."""
    run = target.parent
    scratch, old = (run / f".{target.name}.{os.getpid()}.{n}.partial" for n in ("new", "old"))
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        write(scratch)
        for path in scratch.rglob("*"):
            if path.is_file():
                path.chmod(0o644)  # safetensors leaves weights to their owner
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        sync_folder(scratch)
        if target.is_dir():
            os.replace(target, old)
        os.replace(scratch, target)
        sync_folder(run)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def remove_old(run: Path, keep: int) -> None:
    """A checkpoint loses its name before its files, so that none is ever half there."""
    for path in checkpoints(run)[:-keep]:
        scratch = run / f".{path.name}.{os.getpid()}.partial"
        os.replace(path, scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    files = sorted(checkpoint.glob("model*.safetensors"))
    if not files:
        raise ValueError(f"{checkpoint} has no weights: it is no checkpoint of ours")
    with _readable(checkpoint):
        return {name: value for file in files for name, value in load_file(file).items()}


def read_optimizer(checkpoint: Path) -> dict[str, Any]:
    with _readable(checkpoint):
        return torch.load(checkpoint / OPTIMIZER, map_location="cpu", weights_only=True)


def read_progress(checkpoint: Path) -> dict[str, Any]:
    with _readable(checkpoint):
        return json.loads((checkpoint / PROGRESS).read_text(encoding="utf-8"))


@contextmanager
def _readable(checkpoint: Path) -> Iterator[None]:
    """Checkpoints are written whole, so what cannot be read was damaged since."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        raise ValueError(
            f"{checkpoint} is damaged ({type(error).__name__}: {str(error).splitlines()[0]}): remove it, and --resume "
            "goes on from the checkpoint before it, or from the start"
        ) from error
