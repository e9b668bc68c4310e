"""From tables (TOML, --set) to frozen dataclasses: every name and type is checked, and what is wrong says the fix."""

import difflib
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar

Made = TypeVar("Made")


class BadRecipe(ValueError):
    """A recipe that describes no run."""


def read_table(cls: type[Made], table: Mapping[str, Any], where: str) -> Made:
    """`cls` from a table; `where` is its name in messages, such as `train`."""
    if not isinstance(table, Mapping):
        raise BadRecipe(f"{where} is a section with fields of its own, got {table!r}: set one of them, as {where}.x")
    assert is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    known = [field.name for field in fields(cls)]
    values = {name: checked(value, hints[name], f"{where}.{name}") for name, value in pick(table, known, where)}
    try:
        return cls(**values)
    except BadRecipe:
        raise
    except (TypeError, ValueError) as error:
        raise BadRecipe(f"{where}: {error}") from error


def pick(table: Mapping[str, Any], known: Iterable[str], where: str) -> Iterable[tuple[str, Any]]:
    """The fields of a table, each of which must be known."""
    names = list(known)
    for name, value in table.items():
        if name not in names:
            raise BadRecipe(
                unknown(f"{where}.{name}" if where else name, [f"{where}.{n}" if where else n for n in names])
            )
        yield name, value


def unknown(name: str, names: list[str]) -> str:
    return f"a recipe has no field {name}: {nearest(name, names)}"


def nearest(name: str, names: list[str]) -> str:
    """What a misspelt name may have meant, or all there are."""
    return _meant(name, names) or f"there are {', '.join(names)}"


def chosen(name: str, names: Iterable[str]) -> str:
    """Of a misspelt choice: what it may have meant, and all there are."""
    names = list(names)
    return f"{_meant(name, names)} use one of {', '.join(names)}".lstrip()


def _meant(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 1, 0.5)
    return f"did you mean {near[0]}?" if near else ""


def checked(value: Any, hint: Any, name: str) -> Any:
    """The value as the type that is wanted; a list where a tuple is, a whole number where a number is."""
    for one in _alternatives(hint):
        origin = typing.get_origin(one)
        if origin is Literal and value in typing.get_args(one) and not isinstance(value, bool):
            return value
        if origin is tuple:
            if isinstance(value, str) and typing.get_args(one)[0] is str:
                return (value,)
            inner = typing.get_args(one)[0]
            if isinstance(value, list | tuple) and all(type(x) is inner for x in value):
                return tuple(value)
        elif origin is dict:
            if isinstance(value, Mapping):
                return dict(value)
        elif origin is list:
            if isinstance(value, list | tuple) and all(isinstance(x, str) for x in value):
                return list(value)
        elif one is float and isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise BadRecipe(f"{name}={value}: a finite number")
            return float(value)
        elif isinstance(one, type) and isinstance(value, one) and (one is bool or not isinstance(value, bool)):
            return value
    if typing.get_origin(hint) is Literal and isinstance(value, str):
        raise BadRecipe(f"{name}={value!r} is unknown: {chosen(value, typing.get_args(hint))}")
    raise BadRecipe(f"{name}={value!r} is {_kind(value)}: use {_wanted(hint)}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
    return next((words for kind, words in names.items() if type(value) is kind), type(value).__name__)


def _wanted(hint: Any) -> str:
    words = []
    for one in _alternatives(hint):
        if typing.get_origin(one) is Literal:
            words.append("one of " + ", ".join(str(x) for x in typing.get_args(one)))
        elif typing.get_origin(one) in (tuple, list):
            words.append("a list of whole numbers" if typing.get_args(one)[0] is int else "a list of texts")
        elif typing.get_origin(one) is dict:
            words.append("a table, such as {features = 64}")
        elif one is not type(None):
            kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
            words.append(kinds.get(one, str(one)))
    return " or ".join(dict.fromkeys(words))


def read_assignment(text: str) -> tuple[list[str], Any]:
    """`a.b=c` as its path and its value: TOML where it is TOML, a bare word as text."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise BadRecipe(f"--set {text!r}: write a field, =, and its value, such as train.steps=100")
    try:
        return path.strip().split("."), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip().split("."), value.strip()
