"""The user's own files: splits that cover everything once."""

import gzip
import json
from pathlib import Path

import pytest

from cosformer.tasks import BadData, ExampleFiles, ParallelLines, TextFiles


def texts(source: TextFiles, split: str) -> list[str]:
    found, parts = [], b""
    for piece in source.pieces(split):
        parts += piece.data
        if piece.last:
            found.append(parts.decode())
            parts = b""
    return found


def test_a_single_text_is_held_out_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    text = "".join(f"line {i}\n" for i in range(1000))
    path.write_bytes(gzip.compress(text.encode()))
    source = TextFiles([path])
    assert source.splits == ("train", "valid", "test")
    assert not source.document_marks
    parts = ["".join(texts(source, split)) for split in source.splits]
    assert "".join(parts) == text
    assert all(part.endswith("\n") for part in parts)
    assert 0.88 < len(parts[0]) / len(text) < 0.92
    assert source.expected_bytes("train") is None


@pytest.mark.parametrize("kind", ["files", "rows", "lines"])
def test_documents_are_held_out_by_hash(tmp_path: Path, kind: str) -> None:
    names = [f"text number {i}" for i in range(300)]
    if kind == "files":
        for i, name in enumerate(names):
            (tmp_path / f"{i:03d}.txt").write_text(name)
    elif kind == "rows":
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": n}) for n in names))
    else:
        (tmp_path / "a.txt").write_text("\n".join(names))
    source = TextFiles([tmp_path], document="line" if kind == "lines" else "file", held_out=(0.1, 0.1))
    parts = {split: texts(source, split) for split in source.splits}
    assert sorted(text for part in parts.values() for text in part) == sorted(names)
    assert all(15 < len(parts[split]) < 50 for split in ("valid", "test"))
    assert parts == {split: texts(source, split) for split in source.splits}
    assert source.document_marks
    assert source.stamp("train") != source.stamp("valid")
    expected = source.expected_bytes("valid")
    assert expected is not None
    assert expected > 0


def test_named_splits_are_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text(name)
    source = TextFiles([tmp_path / "train.txt"], valid=[tmp_path / "valid.txt"], held_out=(0.1, 0.0))
    assert source.splits == ("train", "valid")
    assert texts(source, "train") == ["train"]
    assert texts(source, "valid") == ["valid"]
    with pytest.raises(ValueError, match="has no split 'test': use one of train, valid"):
        texts(source, "test")


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(ValueError, match="held_out"):
        TextFiles([tmp_path], held_out=(0.5, 0.5))
    with pytest.raises(ValueError, match="document='page'"):
        TextFiles([tmp_path], document="page")
    (tmp_path / "c.jsonl").write_text('{"body": "x"}')
    with pytest.raises(BadData, match=r"c\.jsonl, line 1: there is no column 'text'; there are body"):
        texts(TextFiles([tmp_path / "c.jsonl"], held_out=(0, 0)), "train")


def test_examples_find_their_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,other,label\n" + "".join(f"t{i},o{i},{'bad' if i % 2 else 'good'}\n" for i in range(200)))
    source = ExampleFiles([path])
    assert source.classes == ("bad", "good")
    parts = [list(source.examples(split)) for split in source.splits]
    assert sorted(e.texts[0] for part in parts for e in part) == sorted(f"t{i}" for i in range(200))
    assert all(e.label == (int(e.texts[0][1:]) + 1) % 2 for e in parts[0])
    pairs = ExampleFiles([path], columns=("text", "other"), label=None, held_out=(0, 0))
    assert pairs.splits == ("train",)
    assert next(pairs.examples("train")).texts == ("t0", "o0")
    assert next(pairs.examples("train")).label is None
    numbers = tmp_path / "n.tsv"
    numbers.write_text(" text\tlabel \n" + "a\t2\nb\t0\n" * 2)
    assert ExampleFiles([numbers]).classes == ("0", "2")
    with pytest.raises(BadData, match="there is no column 'class'"):
        ExampleFiles([path], label="class")
    with pytest.raises(BadData, match="two classes at least"):
        ExampleFiles([path], label="label", classes=None, columns=("text",)).__class__([_one_class(tmp_path)])
    with pytest.raises(ValueError, match="one or two columns"):
        ExampleFiles([path], columns=("a", "b", "c"))
    with pytest.raises(BadData, match="line 3: label 'bad' in column 'label' is none of the 2 classes"):
        list(ExampleFiles([path], classes=("good", "fine"), held_out=(0, 0)).examples("train"))


def _one_class(folder: Path) -> Path:
    (folder / "one.csv").write_text("text,label\na,x\n")
    return folder / "one.csv"


def test_parallel_files_must_be_as_long(tmp_path: Path) -> None:
    for name, lines in (("a", "1\n2\n3\n"), ("b", "x\ny\n"), ("empty", "")):
        (tmp_path / name).write_text(lines)
    with pytest.raises(BadData, match=r"b, line 3: the file ends, but .*a goes on"):
        list(ParallelLines({"train": (tmp_path / "a", tmp_path / "b")}).examples("train"))
    with pytest.raises(BadData, match="no pairs"):
        list(ParallelLines({"train": (tmp_path / "empty", tmp_path / "empty")}).examples("train"))
