"""The registry of attentions: what a block computes between its projections. Two models may differ in nothing else."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import types
import typing
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from cosformer.nn.compiling import unchanged

if TYPE_CHECKING:
    from cosformer.models.configuration import CosformerConfig
    from cosformer.models.layout import Layout

KINDS: dict[str, type[AttentionKind]] = {}
ELSEWHERE = ("cosformer.rivals",)
"""Packages that register more kinds when they are imported: done once a config asks for a name that is not known yet.

By name, since this layer knows nothing of those that build on it.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NoOptions:
    """A kind without choices of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one attention of one block takes for one sequence, all heads, projections not counted."""

    flops: float
    """Floating-point operations of the forward pass for each token, whatever the length (a multiply-add counts two)."""
    flops_of_context: float = 0
    """More of them for each token, times the tokens it could see: the length, or half of it if causal."""
    state_bytes: int = 0
    """Kept while generating, whatever the length."""
    cache_bytes_per_token: int = 0
    """Kept while generating, for each token of context."""


class AttentionKind(nn.Module):
    """One attention of one block. A new kind derives from this, says what it can do, and is registered by name."""

    layer_type: ClassVar[str] = "full_attention"
    """What the cache holds for it: "full_attention" is keys and values, one pair per token."""
    causal_too: ClassVar[bool] = True
    """Whether it can look back only; every kind can look both ways."""
    why_not_causal: ClassVar[str] = ""
    """Where it cannot: the reason, for the error."""
    across_too: ClassVar[bool] = True
    """Whether it can attend from a decoder to an encoder."""
    continues: ClassVar[bool] = True
    """Whether it can go on from what a cache holds; else the whole sequence is read again for every token written."""
    needs_horizon: ClassVar[bool] = False
    """Whether it is undefined beyond `config.horizon` tokens."""
    Options: ClassVar[type[Any]] = NoOptions
    """A frozen dataclass: what `config.attention_options` may say to it, checked at its birth."""

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__()
        self.layer, self.causal = layer, causal

    @property
    def rotates_itself(self) -> bool:
        """Whether it takes q and k as they are where positions="rotary", and turns what it makes of them."""
        return False

    @property
    def takes_joined(self) -> bool:
        """Whether `attend_joined` is there, for self attention without a cache, and does what `attend` does."""
        return False

    def attends_as(self, kind: type[AttentionKind]) -> bool:
        """Whether `attend` is that of `kind`, and nobody's own."""
        return type(self).attend is kind.attend and unchanged(self, "attend")

    @classmethod
    def wants_places(cls, config: CosformerConfig) -> bool:
        """Whether it reads `layout.places`."""
        return False

    @classmethod
    def check(cls, config: CosformerConfig) -> None:
        """Raises where the kind cannot work in this model."""

    @classmethod
    def options_of(cls, config: CosformerConfig) -> Any:
        """Its own part of `config.attention_options`; in a model of several kinds each takes what it knows."""
        own = {field.name for field in dataclasses.fields(cls.Options)}
        told = {name: x for name, x in (config.attention_options or {}).items() if name in own}
        return make_options(cls.Options, told, of="attention_options: ")

    @classmethod
    def cost(cls, config: CosformerConfig, *, causal: bool) -> Cost | None:
        """By formula; None: not known."""
        return None

    def weights(self, q: Tensor, k: Tensor, layout: Layout) -> Tensor:
        """The weights [B,H,T,T] that `attend` puts on v, for looking at: quadratic.

        Read off the answers to v = 1 for one token and 0 for the others, so for any attention that is linear in v.
        """
        tokens, width = k.shape[2:]
        eye = torch.eye(tokens, tokens + -tokens % width, dtype=k.dtype, device=k.device)  # pieces as wide as a head
        parts = [self.attend(q, k, v.expand(*k.shape), layout, None) for v in eye.split(width, -1)]
        return torch.cat(parts, -1)[..., :tokens]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Any | None) -> Tensor:
        """o [B,H,T,K] for q [B,H,T,K], k and v [B,Hkv,T,K] of the same tokens, after what the cache holds."""
        raise NotImplementedError(f"{type(self).__name__} has no self attention")

    def attend_joined(self, qkv: Tensor, heads: int, layout: Layout) -> Tensor:
        """`attend` without a cache, of the heads of q, k and v side by side: qkv [B,T,H + 2·Hkv,K], H `heads`."""
        raise NotImplementedError(f"{type(self).__name__} takes q, k and v apart")

    def attend_across(self, q: Tensor, kv: tuple[Tensor, Tensor] | None, layout: Layout, cache: Any | None) -> Tensor:
        """The same from a decoder to an encoder's k and v [B,Hkv,S,K]; kv is None once the cache holds them."""
        raise NotImplementedError(f"{type(self).__name__} has no cross attention")


TYPES = {int: "a whole number", float: "a number", str: "a name", bool: "true or false", type(None): "None"}
"""Types of options and what an error calls them; a field of any other type is left to its own dataclass."""


def make_options(options: type[Any], told: dict[str, Any], *, of: str = "") -> Any:
    """`options(**told)`, which checks the values, once their types are those of its fields."""
    if not torch.compiler.is_compiling():  # annotations cannot be traced
        for name, value in told.items():
            wanted = _field_types(options)[name]
            if all(kind in TYPES for kind in wanted) and not any(_is_a(value, kind) for kind in wanted):
                words = " or ".join(TYPES[kind] for kind in wanted)
                raise ValueError(f"{of}{name}={value!r} is a {type(value).__name__}: {name} is {words}")
    return options(**told)


@functools.cache
def _field_types(options: type[Any]) -> dict[str, tuple[type, ...]]:
    found: dict[str, tuple[type, ...]] = {}
    try:
        hints = typing.get_type_hints(options)
    except NameError:  # of somebody's own, written for type checkers alone: left to its dataclass
        return {field.name: (object,) for field in dataclasses.fields(options)}
    for name, hint in hints.items():
        either = typing.get_origin(hint) in (types.UnionType, typing.Union)
        found[name] = typing.get_args(hint) if either else (hint,)
    return found


def _is_a(value: Any, kind: type) -> bool:
    """Whole numbers are numbers; True and False are neither."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def register_attention(name: str, kind: type[AttentionKind]) -> None:
    """Makes `attention=name` of a config mean this kind."""
    if name in KINDS and KINDS[name] is not kind:
        raise ValueError(f"attention {name!r} is already {KINDS[name].__name__}: register {kind.__name__} by another")
    KINDS[name] = kind


def find_others() -> None:
    """Imports the packages that register kinds of their own."""
    for package in ELSEWHERE:
        importlib.import_module(package)
