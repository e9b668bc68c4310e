"""Who is measured on a GPU: ours, softmax by SDPA, linear attention of the package `fla` where it is installed."""

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cosformer.bench.floor import linear_flops, softmax_flops
from cosformer.ops.attention import cosformer_attention
from cosformer.ops.cost import flops_per_token
from cosformer.ops.features import angle, phases

GROUPS = ("ours", "sdpa", "fla", "torch")
CAUSAL, FULL, PLAIN = "cosformer, causal", "cosformer, bidirectional", "cosformer, causal, plain torch"
FLASH, CUDNN = "softmax, SDPA flash, causal", "softmax, SDPA cuDNN, causal"
FLA_NORMALISED = "fla chunk_linear_attn, relu, normalised"
FLA_SUM = "fla fused_chunk_linear_attn, relu, not normalised"
FLA_COMPOSED = "cosFormer composed from fla, normalised"


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    name: str
    group: str
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    flops: Callable[[int, int], float]
    """Forward operations per token and head, of T and K = V, as the system's own method counts them."""
    tokens_first: bool = False
    """Takes [B, T, H, K] instead of [B, H, T, K]; each gets its own layout, no copies."""

    @property
    def ours(self) -> bool:
        return self.group in ("ours", "torch")


def systems(groups: tuple[str, ...] = GROUPS, *, backend: str = "auto") -> tuple[list[System], dict[str, str]]:
    """Those that can be asked here, and why the others cannot."""
    found: list[System] = []
    left_out: dict[str, str] = {}
    if "ours" in groups:
        found += [
            System(name=CAUSAL, group="ours", attend=_ours(True, backend), flops=_linear_form(True)),
            System(name=FULL, group="ours", attend=_ours(False, backend), flops=_linear_form(False)),
        ]
    if "sdpa" in groups:
        for name, kernel in ((FLASH, SDPBackend.FLASH_ATTENTION), (CUDNN, SDPBackend.CUDNN_ATTENTION)):
            found.append(System(name=name, group="sdpa", attend=_sdpa(kernel), flops=softmax_flops))
    if "fla" in groups:
        try:
            found += _fla(importlib.import_module("fla.ops.linear_attn"))
        except Exception as error:  # an install that does not fit this Triton can fail in any way: say how
            reason = f"fla cannot be imported ({in_words(error)}); pip install 'cosformer[bench]'"
            left_out |= dict.fromkeys((FLA_NORMALISED, FLA_SUM, FLA_COMPOSED), reason)
    if "torch" in groups:
        found.append(System(name=PLAIN, group="torch", attend=_ours(True, "torch"), flops=_linear_form(True)))
    return found, left_out


def attempt(run: Callable[[], object], *, ours: bool = False) -> str | None:
    """None if it ran; else why not. Ours may only run out of memory: anything else is a fault to see, not a cell."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run()
            return None
        except torch.OutOfMemoryError:
            return "out of memory"
        except torch.AcceleratorError:  # the device is lost for this process: nothing after it could be trusted
            raise
        except Exception as error:
            if ours:
                raise
            return in_words(error, *dict.fromkeys(str(w.message) for w in said))


def in_words(error: BaseException, *hints: str) -> str:
    """One line: kind and message of the error, then what was said before it (SDPA warns why a kernel refuses)."""
    lines = [str(error), *hints]
    first = [" ".join(line.split("\n")[0].split(" (Triggered internally")[0].split()) for line in lines]
    return f"{type(error).__name__}: " + "; ".join(line for line in first if line)


def _ours(causal: bool, backend: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cosformer_attention(q, k, v, causal=causal, backend=backend)

    return attend


def _linear_form(causal: bool) -> Callable[[int, int], float]:
    return lambda length, width: flops_per_token(width, width, causal=causal)


def _sdpa(kernel: SDPBackend) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


def _fla(ops: ModuleType) -> list[System]:
    """relu is part of each call, as it is of ours; scale 1 (it cancels where there is a denominator)."""

    def normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.chunk_linear_attn(q.relu(), k.relu(), v, scale=1.0, normalize=True)[0]

    def summed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.fused_chunk_linear_attn(q.relu(), k.relu(), v, scale=1.0, normalize=False)[0]

    def composed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cos, sin = _tables(q.shape[1], q.device, q.dtype)
        q, k = q.relu(), k.relu()
        q, k = (torch.cat([x * cos, x * sin], -1) for x in (q, k))  # [B, T, H, 2K]
        return ops.chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0]

    def plain(length: int, width: int) -> float:
        return linear_flops(width, width)

    def doubled(length: int, width: int) -> float:
        return linear_flops(2 * width, width)

    return [
        System(name=FLA_NORMALISED, group="fla", attend=normalised, flops=plain, tokens_first=True),
        System(name=FLA_SUM, group="fla", attend=summed, flops=plain, tokens_first=True),
        System(name=FLA_COMPOSED, group="fla", attend=composed, flops=doubled, tokens_first=True),
    ]


@functools.lru_cache(maxsize=8)
def _tables(length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos θt and sin θt [T, 1, 1] for M = T, made once: a constant of the model, not part of its calls."""
    cos, sin = phases(0, length, angle(length), torch.empty(0, device=device, dtype=dtype))
    return cos[:, None, None], sin[:, None, None]
