"""The column of the class: what names a class and what does not, and which classes there are."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cosformer.tasks.errors import BadData, OptionOfTraining
from cosformer.tasks.pieces import Place
from cosformer.tasks.sources.tables import Row, no_column

MOST_CLASSES = 1000
SHOWN = 20  # classes that an error lists
FEW_ROWS = 4  # per class, where most labels are seen once: names or texts rather than classes
INTEGER = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def label_name(place: Place, label: Any, column: str) -> str:
    """The name of a class. 1.0 is that of 1: tables with a missing label somewhere often write all of them so."""
    name = "" if label is None else str(label).strip()
    if name in ("", "nan", "NaN"):
        raise BadData(
            f"{place}: column {column!r} holds {label!r}, which is no class: fill it in, or leave the row out"
        )
    if isinstance(label, list | tuple | dict):
        raise BadData(f"{place}: column {column!r} holds {label!r}: one class per row was expected, a word or a number")
    if INTEGER.fullmatch(name) or not (NUMBER.fullmatch(name) or isinstance(label, float)):
        return name
    if not float(name).is_integer():
        raise BadData(
            f"{place}: column {column!r} holds {name}: is it a number to predict? This task wants classes; name "
            "another column with --label, or, if such numbers are the classes, all of them with --classes"
        )
    return str(int(float(name)))


def label_number(place: Place, row: Row, column: str, classes: Sequence[str], option: str = "--label") -> int:
    """The class of a row: its name among `classes`, or its number where the names are words."""
    if column not in row:
        raise no_column(place, row, column, option)
    label = row[column]
    written = None if label is None else str(label).strip()
    if written in classes:
        return classes.index(written)
    name = label_name(place, label, column)
    if name in classes:
        return classes.index(name)
    words = not all(INTEGER.fullmatch(known) for known in classes)
    if words and not isinstance(label, bool) and INTEGER.fullmatch(name) and 0 <= int(name) < len(classes):
        return int(name)
    raise OptionOfTraining(
        f"{place}: label {label!r} in column {column!r} is none of the {len(classes)} classes ({_some(classes)})"
        + (" nor a number from 0 on" if words else ""),
        "; classes that the training data lacks are named with --classes, all of them",
        ", and the model knows no others: leave the row out, or name its class as in the training data",
    )


def find_classes(rows: Iterable[tuple[Place, Row]], column: str, where: str) -> tuple[str, ...]:
    """The names in a column: 0 … n − 1 where they are these, other integers by size, words by the alphabet."""
    seen: Counter[str] = Counter()
    for place, row in rows:
        if column not in row:
            raise no_column(place, row, column, "--label")
        seen[label_name(place, row[column], column)] += 1
        if len(seen) > MOST_CLASSES:
            raise BadData(
                f"{place}: more than {MOST_CLASSES} different labels in column {column!r}: name another with --label"
            )
    if not seen:
        raise BadData(f"{where}: there are no rows: there is nothing to learn classes from")
    if len(seen) < 2:
        raise BadData(f"{where}: column {column!r} holds {_some(list(seen))} alone: two classes at least are needed")
    _refuse_names(seen, column, where)
    if all(INTEGER.fullmatch(name) for name in seen):
        return tuple(sorted(seen, key=lambda name: (int(name), name)))
    return tuple(sorted(seen))


def _refuse_names(seen: Mapping[str, int], column: str, where: str) -> None:
    once, rows = sum(count == 1 for count in seen.values()), sum(seen.values())
    if 2 * once > len(seen) and rows < FEW_ROWS * len(seen):
        raise BadData(
            f"{where}: column {column!r} holds {len(seen)} different labels in {rows} rows, and {once} of them occur "
            "once: classes come back; name the column that holds them with --label, or give more rows of each"
        )


def checked_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Classes that were named, without spaces around them."""
    found = tuple(name.strip() for name in classes)
    if len(found) < 2 or len(set(found)) < len(found) or "" in found:
        raise ValueError(f"classes={list(classes)}: name two at least, each once (--classes no,yes)")
    return found


def _some(names: Sequence[str]) -> str:
    rest = f", … {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest
