"""Rows of jsonl, csv, tsv and parquet files, one at a time, each with its place."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData, OptionOfTraining, not_utf8
from cosformer.tasks.optional import need
from cosformer.tasks.pieces import Place
from cosformer.tasks.sources.files import open_bytes

Row = dict[str, Any]
ROWS_AT_ONCE = 256


def read_rows(path: Path, kind: str) -> Iterator[tuple[Place, Row]]:
    """Rows by column name. csv with quotes, tsv without, as each is commonly written; both begin with their names."""
    readers = {"jsonl": _jsonl, "csv": read_csv, "tsv": _tsv, "parquet": _parquet}
    if kind not in readers:
        raise BadData(f"{path}: a table was expected; name a file that ends in {', '.join('.' + k for k in readers)}")
    return readers[kind](path)


def lines_of(path: Path) -> Iterator[tuple[Place, str]]:
    """Lines of UTF-8 text without their ends (only \\n and \\r\\n end a line)."""
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, 1):
            place = Place(str(path), number)
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(place, error) from error
            yield place, line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")


def _jsonl(path: Path) -> Iterator[tuple[Place, Row]]:
    for place, line in lines_of(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            hint = " (a whole JSON document over several lines? write one object per line)" if place.line == 1 else ""
            raise BadData(f"{place}: not JSON: {error.msg} at column {error.colno}{hint}") from error
        if not isinstance(row, dict):
            hint = " (a whole list? write one object per line)" if isinstance(row, list) else ""
            raise BadData(f"{place}: an object with named fields was expected, got {type(row).__name__}{hint}")
        yield place, row


def read_csv(path: Path, names: list[str] | None = None) -> Iterator[tuple[Place, Row]]:
    """names: the columns, where the file does not begin with them."""
    csv.field_size_limit(min(sys.maxsize, 1 << 30))
    with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        before = 0
        while True:
            place = Place(str(path), before + 1)
            try:
                cells = next(reader)
            except StopIteration:
                break
            except UnicodeDecodeError as error:
                wrong = next(_undecodable(path), place)
                raise not_utf8(wrong, error) from error
            except csv.Error as error:
                raise BadData(f"{place}: not csv: {error}; quotes inside a quoted field are doubled") from error
            before = reader.line_num
            if names is None:
                names = _columns(place, cells)
            elif cells:
                yield place, _named(place, names, cells)
    if names is None:
        raise BadData(f"{path}: the file is empty: its first line should name the columns")


def _undecodable(path: Path) -> Iterator[Place]:
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, 1):
            try:
                raw.decode()
            except UnicodeDecodeError:
                yield Place(str(path), number)


def _tsv(path: Path) -> Iterator[tuple[Place, Row]]:
    names: list[str] | None = None
    for place, line in lines_of(path):
        cells = line.split("\t")
        if names is None:
            names = _columns(place, cells)
        elif line:
            yield place, _named(place, names, cells)
    if names is None:
        raise BadData(f"{path}: the file is empty: its first line should name the columns")


def _columns(where: Place | Path, cells: list[str]) -> list[str]:
    names = [name.strip() for name in cells]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise BadData(
            f"{where}: {', '.join(map(repr, twice))} names more than one column ({', '.join(names)}): give each a name "
            "of its own"
        )
    return names


def _named(place: Place, names: list[str], cells: list[str]) -> Row:
    if len(cells) != len(names):
        raise BadData(
            f"{place}: {len(cells)} cells, but the first line names {len(names)} columns ({', '.join(names)})"
            + separator_hint(names)
        )
    return dict(zip(names, cells, strict=True))


def _parquet(path: Path) -> Iterator[tuple[Place, Row]]:
    parquet = need("pyarrow.parquet", f"{path} is a parquet file: reading it")
    arrow = need("pyarrow", "parquet")
    if path.suffix.lower() != ".parquet":
        raise BadData(f"{path}: a parquet file is packed inside; unpack it and name the .parquet")
    try:
        file = parquet.ParquetFile(path)
    except (arrow.ArrowInvalid, OSError) as error:
        raise BadData(f"{path}: not a parquet file ({error})") from error
    with file:
        _columns(path, list(file.schema_arrow.names))
        number = 0
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield Place(str(path), number), row  # a row has no line: its number


def text_column(place: Place, row: Row, column: str, option: str = "--column") -> str:
    """The text in a column; refused with the names there are."""
    if column not in row:
        raise no_column(place, row, column, option)
    text = row[column]
    if not isinstance(text, str):
        raise BadData(f"{place}: column {column!r} holds {text!r} ({type(text).__name__}) where text was expected")
    return text


def no_column(place: Place, row: Row, column: str, option: str) -> BadData:
    names = list(row)
    hint = separator_hint(names)
    return OptionOfTraining(
        f"{place}: there is no column {column!r}; there are {', '.join(names) or 'none'}",
        f": choose with {option}{hint}", f": give the one to read that name, which it has in the training data{hint}",
    )  # fmt: skip


def separator_hint(names: Sequence[str]) -> str:
    """For a table whose columns are separated by something else."""
    if len(names) == 1 and (marks := [mark for mark in (";", "\t", "|") if mark in names[0]]):
        return f" (columns separated by {marks[0]!r}? Write a csv with commas, or a .tsv with tabs)"
    return ""


def checked_columns(columns: Sequence[str], label: str | None) -> None:
    """Refuses columns of text that are one and the same, or that give the class away."""
    if len(set(columns)) < len(columns):
        raise ValueError(
            f"columns={list(columns)}: a pair of a text with itself; name two different columns with --column, or one"
        )
    if label in columns:
        raise ValueError(f"columns={list(columns)}, label={label!r}: the class would be read as text; name another")
