"""What a number was measured on: machine, versions, commit, command."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from cosformer.ops.backends import choose_backend
from cosformer.version import __version__

PACKAGES = (
    "torch", "triton", "transformers", "accelerate", "tokenizers", "numpy", "matplotlib", "safetensors",
    "flash-linear-attention", "fla-core",
)  # fmt: skip
COMMIT_VARIABLE, COMMAND_VARIABLE = "COSFORMER_COMMIT", "COSFORMER_COMMAND"


def versions() -> dict[str, str]:
    found = {"cosformer": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if fla := getattr(sys.modules.get("fla"), "__version__", None):  # loaded from a folder, not installed
        found.setdefault("flash-linear-attention", fla)
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        if cudnn := torch.backends.cudnn.version():
            found["cudnn"] = str(cudnn)
    return found


def processor() -> str:
    """The processor's own name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def devices() -> dict[str, str]:
    """Each device torch can use here, in words."""
    found = {"cpu": f"{processor()}, {torch.get_num_threads()} threads"}
    for i in range(torch.cuda.device_count()):
        found[f"cuda:{i}"] = torch.cuda.get_device_name(i)
    if torch.backends.mps.is_available():
        found["mps"] = "Apple GPU"
    return found


def known_device(name: str) -> str:
    """As it is named here; plain `cuda` is the first. Refuses one that this machine lacks before torch does."""
    found = devices()
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in found:
        raise ValueError(f"{name!r} is not on this machine: use one of {', '.join(found)}")
    return wanted


def backends() -> dict[str, str]:
    """Which backend `auto` takes on each device, and why."""
    return {name: str(choose_backend("auto", torch.device(name))) for name in devices()}


def configurations() -> dict[str, str]:
    """How the Triton kernels are launched, by class of shape; empty where Triton is missing."""
    try:
        from cosformer.ops.triton import launch
    except (ImportError, AttributeError):
        return {}
    tell = getattr(launch, "configurations", None)
    return dict(tell()) if tell is not None else {}


def commit() -> str | None:
    """The commit of the checkout this package lies in, with `+` for uncommitted changes.

    The environment variable COSFORMER_COMMIT knows better: files carried to another machine may lie in a checkout of an
    older commit there, or in none. An installed copy has no commit.
    """
    here = Path(__file__).resolve().parents[2]
    if told := os.environ.get(COMMIT_VARIABLE):
        return told
    if not (here / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "cosformer") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def command() -> str:
    """As it was typed, less the folder the program lies in.

    The environment variable COSFORMER_COMMAND knows better: a process that another one started was typed by nobody.
    """
    if told := os.environ.get(COMMAND_VARIABLE):
        return told
    program = Path(sys.argv[0])
    name = "python -m cosformer.cli.main" if program.parts[-2:] == ("cli", "main.py") else shlex.quote(program.name)
    return " ".join([name, shlex.join(sys.argv[1:])]).strip()


def provenance(device: str) -> dict[str, object]:
    """What every result file carries. device: as torch names it; `cuda` is the first."""
    found = devices()
    return {
        "device": found[device] if device in found else found[f"{device}:0"],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "versions": versions(),
        "command": command(),
    }
