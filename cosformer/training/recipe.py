"""What a run is: data, tokenizer, model, training, evaluation. Checked at birth; written out with every field."""

import copy
import json
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from cosformer.training.recipe_fields import BadRecipe, checked, pick, read_assignment, read_table, unknown
from cosformer.training.recipe_sections import (
    SECTIONS,
    DataRecipe,
    EvalRecipe,
    ModelRecipe,
    PretrainRecipe,
    SampleRecipe,
    TokenizerRecipe,
    TrainRecipe,
    model_fields,
)

OPTIONS = "attention_options"
Task = Literal["lm", "mlm", "classify", "translate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    name: str
    task: Task
    """lm: the next token; mlm: masked tokens; classify: a class of one text or a pair; translate: another sequence."""
    about: str = ""
    needs: str = ""
    expect: str = ""
    seed: int = 0
    """Of weights, order of data, dropout and samples."""
    data: DataRecipe
    tokenizer: TokenizerRecipe
    model: ModelRecipe
    train: TrainRecipe
    eval: EvalRecipe
    sample: SampleRecipe
    pretrain: PretrainRecipe

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise BadRecipe(f"seed={self.seed}: from 0 to {2**32 - 1}, as generators take it")
        if self.data.pack and self.task != "lm":
            raise BadRecipe(f"data.pack=true with task={self.task!r}: documents are packed for causal language models")
        if self.task == "mlm" and self.tokenizer.kind == "word":
            raise BadRecipe("tokenizer.kind='word' with task='mlm': there is no token for masks; use bpe or bytes")

    @classmethod
    def read(cls, table: Mapping[str, Any], *, name: str = "") -> "Recipe":
        """From a table as TOML gives it."""
        plain = [f.name for f in fields(cls) if f.name not in SECTIONS]
        found = dict(pick(table, [*plain, *SECTIONS], ""))
        hints = typing.get_type_hints(cls)
        values: dict[str, Any] = {n: checked(found[n], hints[n], n) for n in plain if n in found}
        values.setdefault("name", name)
        if "task" not in values:
            raise BadRecipe(f"recipe {name!r} has no task: use one of {', '.join(typing.get_args(Task))}")
        for section, kind in SECTIONS.items():
            part = found.get(section, {})
            values[section] = ModelRecipe.read(part) if kind is ModelRecipe else read_table(kind, part, section)
        return cls(**values)

    def table(self) -> dict[str, Any]:
        """As TOML writes it: every field with its value."""
        out: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in SECTIONS}
        for section, kind in SECTIONS.items():
            part = getattr(self, section)
            out[section] = (
                part.table() if kind is ModelRecipe else {f.name: getattr(part, f.name) for f in fields(kind)}
            )
        return out

    def with_values(self, assignments: Sequence[str]) -> "Recipe":
        """Another recipe: each assignment is `section.field=value`, as --set takes it."""
        table = copy.deepcopy({k: dict(v) if isinstance(v, dict) else v for k, v in self.table().items()})
        for text in assignments:
            path, value = read_assignment(text)
            if len(path) == 1 and path[0] not in SECTIONS:
                known = [f.name for f in fields(Recipe) if f.name not in SECTIONS]
                if path[0] not in known:
                    raise BadRecipe(unknown(path[0], [*known, *_dotted()]))
                table[path[0]] = value
            elif len(path) == 1 and isinstance(value, dict):
                table[path[0]] |= value
            elif len(path) == 1:
                raise BadRecipe(f"{path[0]} is a section with fields of its own: set one of them, as {path[0]}.x=…")
            elif len(path) == 2 and path[0] in SECTIONS:
                table[path[0]][path[1]] = value
            elif len(path) == 3 and path[:2] == ["model", OPTIONS]:  # one choice; the others stay
                table["model"][OPTIONS] = {**(table["model"].get(OPTIONS) or {}), path[2]: value}
            else:
                raise BadRecipe(unknown(".".join(path), _dotted()))
            given = value if len(path) == 1 and isinstance(value, dict) else {path[-1]: value}
            for one, other in (("steps", "epochs"), ("epochs", "steps")):
                if path[0] == "train" and given.get(one) and not given.get(other):  # one replaces the other
                    table["train"][other] = 0
        return Recipe.read(table)

    def toml(self) -> str:
        return to_toml(self.table())


def _dotted() -> list[str]:
    names = {section: [f.name for f in fields(kind)] for section, kind in SECTIONS.items()}
    names["model"] = ["init", *model_fields()]
    return [f"{section}.{name}" for section, found in names.items() for name in found]


def to_toml(table: Mapping[str, Any]) -> str:
    """Plain values first, then a table for each section."""
    lines = [f"{name} = {_value(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    for name, part in table.items():
        if isinstance(part, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in part.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(x) for x in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(str(key))} = {_value(x)}" for key, x in value.items()) + "}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace(
            "\x7f", "\\u007f"
        )  # TOML's strings are JSON's, but for DEL
    return repr(value)


def read_recipe_file(path: Path) -> Recipe:
    try:
        return Recipe.read(tomllib.loads(path.read_text(encoding="utf-8")), name=path.stem)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRecipe(f"{path} is not TOML ({error})") from error
    except BadRecipe as error:
        raise BadRecipe(f"{path}: {error}") from error
