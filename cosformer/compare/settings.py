"""What a sweep measures: which attentions, at which lengths, in which shape. What fills a CPU, and what a GPU."""

import hashlib
import importlib
import json
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

LENGTHS = tuple(512 << i for i in range(9))  # 512 to 131,072
QUICK = (512, 1_024, 2_048, 4_096, 8_192)
MODES = ("causal", "bidirectional")
WORKS = ("forward", "training")
"""forward: without gradients, as a model that answers. training: forward and backward, to q, k, v and own weights."""
SOFTMAX, CUDNN = "softmax", "softmax_cudnn"
BASELINES = (SOFTMAX, CUDNN)
"""One function by different kernels: what is compared with softmax is compared with the fastest of them."""
CUDNN_LIVES_IN = "cosformer.bench.train_settings"
CHOICES = ("attentions", "lengths", "modes", "visits", "minutes")
"""Fields that say which cells are wanted, and how often; all others are part of what a number means."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    attentions: tuple[str, ...]
    lengths: tuple[int, ...] = LENGTHS
    modes: tuple[str, ...] = MODES
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    """Of q, k and v; an attention's own weights stay in fp32, as in mixed-precision training."""
    heads: int = 2
    width: int = 64
    """K and V of a head."""
    tokens: int = 2_048
    """Of a call: short sequences are batched up to this many; a longer one is alone."""
    visits: int = 3
    """Times each cell is measured, with all others of its length in between: a slow spell hits them all."""
    sample_s: float = 0.15
    """Seconds of samples in a visit; at least one sample is taken."""
    limit_s: float = 5.0
    """Longest call that is waited for, in seconds."""
    memory_gib: float | None = None
    """What one call may take beyond its inputs; None: four fifths of what is free."""
    imports: tuple[str, ...] = ()
    """Modules that register further attentions."""
    minutes: float | None = None
    """The sweep stops asking for more after this long; None: when all is measured."""

    def __post_init__(self) -> None:
        for name in ("attentions", "lengths", "modes"):
            given = getattr(self, name)
            if not given or len(set(given)) != len(given):
                raise ValueError(f"{name}={given}: name at least one, and each once")
        if min(self.lengths) < 1:
            raise ValueError(f"lengths={self.lengths}: they count tokens; use at least 1")
        if unknown := sorted(set(self.modes) - set(MODES)):
            raise ValueError(f"mode {', '.join(unknown)} is unknown: use {' or '.join(MODES)}")
        for name in ("heads", "width", "tokens", "visits"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: use at least 1")
        for name in ("sample_s", "limit_s", "memory_gib", "minutes"):
            if (given := getattr(self, name)) is not None and not given > 0:
                raise ValueError(f"{name}={given}: use more than 0")
        if not self.device.startswith(("cpu", "cuda")):
            raise ValueError(f"device={self.device}: what is forked can measure on cpu and cuda only")
        if not self.dtype.is_floating_point:
            raise ValueError(f"dtype={self.dtype}: attention is computed in floating point; use fp32 or bf16")

    def batch(self, length: int) -> int:
        return max(1, self.tokens // length)

    def to_json(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["dtype"] = str(self.dtype).removeprefix("torch.")
        return {name: list(x) if isinstance(x, tuple) else x for name, x in plain.items()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        plain: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in found.items()}
        return cls(**plain | {"dtype": getattr(torch, found["dtype"])})

    def meaning(self) -> dict[str, Any]:
        """What a number depends on, apart from machine and versions."""
        return {name: x for name, x in self.to_json().items() if name not in CHOICES}


def sha256(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def defaults(device: str, imports: tuple[str, ...] = ()) -> Sweep:
    """All attentions; bf16 and 131,072 tokens a call on CUDA, fp32 and 2,048 elsewhere."""
    on_cuda = device.startswith("cuda")
    imports = (*imports, CUDNN_LIVES_IN) if on_cuda and CUDNN_LIVES_IN not in imports else imports
    base = Sweep(attentions=known(imports), device=device, imports=imports)
    if not on_cuda:
        return base
    return replace(base, dtype=torch.bfloat16, heads=16, tokens=131_072, visits=2, sample_s=0.04, limit_s=1.0)


def known(imports: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every attention that is registered here: ours, softmax, then the others by name."""
    from cosformer.models import KINDS
    from cosformer.models.kinds import find_others

    find_others()
    for module in imports:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
                raise  # it is there, and what it imports is not
            raise ValueError(
                f"no module named {module!r}: install it, or give the command where it lies (--import)"
            ) from error
    first = ("cosformer", *(BASELINES if CUDNN_LIVES_IN in imports else (SOFTMAX,)))
    return (*first, *sorted(set(KINDS) - {"cosformer", *BASELINES}))


def check_known(sweep: Sweep) -> None:
    """Refuses a name that no attention has, before any process is started for it."""
    if unknown := [name for name in sweep.attentions if name not in (found := known(sweep.imports))]:
        raise ValueError(
            f"attention {', '.join(unknown)} is unknown: use some of {','.join(found)}, or name the module that "
            "registers it with --import"
        )
