"""Rows of jsonl, csv, tsv and parquet files, one at a time, each with its place."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData
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


def not_utf8(place: Place, error: UnicodeDecodeError) -> BadData:
    wrong = error.object[error.start]
    return BadData(
        f"{place}: byte 0x{wrong:02x} is not UTF-8 ({error.reason}): convert the file (iconv -t utf-8), or use the "
        "byte tokenizer, which takes bytes as they are"
    )


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
            raise BadData(f"{place}: an object with named fields was expected, got {type(row).__name__}")
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
                names = cells
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
            names = cells
        elif line:
            yield place, _named(place, names, cells)
    if names is None:
        raise BadData(f"{path}: the file is empty: its first line should name the columns")


def _named(place: Place, names: list[str], cells: list[str]) -> Row:
    if len(cells) != len(names):
        raise BadData(
            f"{place}: {len(cells)} cells, but the first line names {len(names)} columns ({', '.join(names)})"
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
        number = 0
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield Place(str(path), number), row  # a row has no line: its number


def text_column(place: Place, row: Row, column: str, option: str = "--column") -> str:
    """The text in a column; refused with the names there are."""
    if column not in row:
        raise BadData(f"{place}: there is no column {column!r}; there are {_listed(row)}: choose with {option}")
    text = row[column]
    if not isinstance(text, str):
        raise BadData(f"{place}: column {column!r} holds {text!r} ({type(text).__name__}) where text was expected")
    return text


def label_number(place: Place, row: Row, column: str, classes: tuple[str, ...], option: str = "--label") -> int:
    """The class of a row: its name among `classes`, or its number."""
    if column not in row:
        raise BadData(f"{place}: there is no column {column!r}; there are {_listed(row)}: choose with {option}")
    label = row[column]
    name = str(label).strip()
    if name in classes:
        return classes.index(name)
    if not isinstance(label, bool | float) and name.isdecimal() and int(name) < len(classes):
        return int(name)
    raise BadData(
        f"{place}: label {label!r} in column {column!r} is none of the {len(classes)} classes ({', '.join(classes)}) "
        "nor a number from 0 on"
    )


def _listed(row: Iterable[str]) -> str:
    return ", ".join(row) or "none"
