"""Rows of tables, and what is said of wrong ones: the file and the line."""

import json
import re
from pathlib import Path

import pytest

from cosformer.tasks.errors import BadData, MissingPackage
from cosformer.tasks.pieces import Place
from cosformer.tasks.sources.labels import label_number
from cosformer.tasks.sources.tables import read_csv, read_rows, text_column

ROWS = [{"text": 'a "quoted", né\nline', "label": "1"}, {"text": "b", "label": "0"}]


def test_formats_give_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbftext,label\r\n"a ""quoted"", n\xc3\xa9\nline",1\r\nb,0\r\n')
    arrow = pytest.importorskip("pyarrow", reason="parquet: pip install cosformer[data]")
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for kind in ("jsonl", "csv", "parquet"):
        assert [row for _, row in read_rows(tmp_path / f"a.{kind}", kind)] == ROWS, kind
    assert [place.line for place, _ in read_rows(tmp_path / "a.csv", "csv")] == [2, 4]
    (tmp_path / "a.tsv").write_text('text\tlabel\na "quoted\t1\n')
    assert [row for _, row in read_rows(tmp_path / "a.tsv", "tsv")] == [{"text": 'a "quoted', "label": "1"}]
    (tmp_path / "b.csv").write_text('1,"x"\n')
    assert [row for _, row in read_csv(tmp_path / "b.csv", ["k", "t"])] == [{"k": "1", "t": "x"}]


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("jsonl", b'{"text": "a"}\n{"text"', "line 2: not JSON"),
        ("jsonl", b"{\n", "one object per line"),
        ("jsonl", b"[1]\n", "line 1: an object with named fields was expected, got list (a whole list? write one"),
        ("csv", b"text,label,text\na,1,b\n", "line 1: 'text' names more than one column (text, label, text)"),
        ("tsv", b"a\tb\ta \n1\t2\t3\n", "line 1: 'a' names more than one column (a, b, a)"),
        ("csv", b"text;label\na, b;1\n", "line 2: 2 cells, but the first line names 1 columns (text;label) (columns "
         "separated by ';'? Write a csv with commas"),
        ("jsonl", b'{"a": 1}\n{"text": "\xff"}\n', "line 2: byte 0xff is not UTF-8"),
        ("csv", b"", "the file is empty"),
        ("csv", b"text,label\na,1\nb\n", "line 3: 1 cells, but the first line names 2 columns (text, label)"),
        ("csv", b"text\na\n\xff\n", "line 3: byte 0xff is not UTF-8"),
        ("csv", b'text\n"a"b\n', "line 2: not csv"),
        ("tsv", b"", "the file is empty"),
        ("tsv", b"text\tlabel\na\n", "line 2: 1 cells"),
        ("parquet", b"junk", "not a parquet file"),
        ("text", b"a", "a table was expected"),
    ],
)  # fmt: skip
def test_wrong_tables_are_named(tmp_path: Path, kind: str, data: bytes, words: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="parquet: pip install cosformer[data]")
    path = tmp_path / f"a.{kind}"
    path.write_bytes(data)
    with pytest.raises(BadData, match=re.escape(words)) as error:
        list(read_rows(path, kind))
    assert str(error.value).startswith(str(path))


def test_columns_and_labels() -> None:
    place, row = Place("a.csv", 7), {"text": "x", "n": 3, "label": "yes", "k": 1, "b": True, "f": 0.0}
    assert text_column(place, row, "text") == "x"
    with pytest.raises(BadData, match=r"a\.csv, line 7: there is no column 'body'; there are text, n"):
        text_column(place, row, "body")
    with pytest.raises(BadData, match="column 'n' holds 3"):
        text_column(place, row, "n")
    assert label_number(place, row, "label", ("no", "yes")) == 1
    assert label_number(place, row, "k", ("no", "yes")) == 1
    assert label_number(place, row, "f", ("no", "yes")) == 0
    for column, words in (("n", "label 3"), ("text", "label 'x'"), ("b", "True"), ("none", "no column")):
        with pytest.raises(BadData, match=words):
            label_number(place, row, column, ("no", "yes"))


def test_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text, label ,,\na, 1,,\n")
    assert [row for _, row in read_rows(tmp_path / "a.csv", "csv")] == [{"text": "a", "label": " 1", "": ""}]
    (tmp_path / "b.csv").write_text("text;label\na;1\n")
    with pytest.raises(BadData, match="there are text;label: choose with --column \\(columns separated by ';'"):
        [text_column(place, row, "text") for place, row in read_rows(tmp_path / "b.csv", "csv")]


def test_columns_of_parquet_have_names_of_their_own(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="parquet: pip install cosformer[data]")
    import pyarrow.parquet as parquet

    columns = [arrow.array(["a"]), arrow.array(["b"])]
    parquet.write_table(arrow.Table.from_arrays(columns, names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(BadData, match=r"a\.parquet: 'text' names more than one column"):
        list(read_rows(tmp_path / "a.parquet", "parquet"))


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPackage, match=re.escape("pip install 'cosformer[data]'")):
        list(read_rows(tmp_path / "a.parquet", "parquet"))
