"""What is held out of the user's own files: never nothing, the same every time, wherever the folder lies."""

import json
import shutil
from pathlib import Path

import pytest

from cosformer.tasks import BadData, ExampleFiles, TextFiles
from cosformer.tasks.sources.ends import LEAST
from cosformer.tasks.sources.held_out import moved_units
from cosformer.tasks.sources.source import split_by_hash
from cosformer.tasks.sources.text_files import PIECE

SPLITS = ("train", "valid", "test")
SHARES = (0.05, 0.05)


def whole(source: TextFiles, split: str) -> str:
    return b"".join(piece.data for piece in source.pieces(split)).decode()


def files(folder: Path, count: int, lines: int = 100) -> dict[str, str]:
    """Texts by name, each with lines of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {f"part{i}.txt": "".join(f"file {i}, line {n}\n" for n in range(lines)) for i in range(count)}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return texts


@pytest.mark.parametrize("count", [3, 4, 7, 30])
def test_an_empty_split_gets_the_file_of_the_smallest_hash(tmp_path: Path, count: int) -> None:
    texts = files(tmp_path / "a", count)
    source = TextFiles([tmp_path / "a"])
    parts = {split: whole(source, split) for split in SPLITS}
    assert all(parts.values())
    assert sorted("".join(parts.values()).splitlines()) == sorted("".join(texts.values()).splitlines())
    for name, text in texts.items():  # whole files, and each where its hash says if that was not train
        split = next(s for s in SPLITS if text in parts[s])
        assert split_by_hash(name, SHARES) in ("train", split)
    again = TextFiles([tmp_path / "a"])
    assert parts == {split: whole(again, split) for split in SPLITS}
    for split in SPLITS:
        assert source.stamp(split) == again.stamp(split)
        assert source.expected_bytes(split) == len(parts[split])


def test_units_are_moved_only_where_a_split_is_empty() -> None:
    many = [f"{i}" for i in range(400)]
    assert {split_by_hash(key, SHARES) for key in many} == set(SPLITS)
    assert moved_units(many, SHARES) == {}
    assert moved_units(iter([*many, *([None] * 9)]), SHARES) == {}  # type: ignore[list-item]  # not read to the end
    train = [key for key in many if split_by_hash(key, SHARES) == "train"]
    moved = moved_units(train, SHARES)
    assert moved is not None
    assert moved == moved_units(train[::-1], SHARES)
    assert list(moved.values()) == ["valid", "test"]
    assert moved_units(train[:2], (0.05, 0.0)) is not None
    assert moved_units(train[:2], SHARES) is None
    assert moved_units([train[0]] * 5, (0.05, 0.0)) is None  # one file, named five times
    held = [key for key in many if split_by_hash(key, SHARES) == "valid"][:3]
    moved = moved_units(held, SHARES)
    assert moved is not None
    assert sorted(moved.values()) == ["test", "train"]


def test_two_files_are_cut_at_their_ends(tmp_path: Path) -> None:
    texts = files(tmp_path, 2)
    source = TextFiles([tmp_path])
    parts = [whole(source, split) for split in SPLITS]
    assert sorted("".join(parts).splitlines()) == sorted("".join(texts.values()).splitlines())
    assert all(f"file {i}" in part for part in parts for i in range(2))
    assert all(part.endswith("\n") for part in parts)
    assert source.document_marks
    one = TextFiles([tmp_path], valid=[tmp_path / "part0.txt"])  # test alone is held out: a whole file
    assert {whole(one, "train"), whole(one, "test")} == set(texts.values())


def test_how_it_was_decided_is_in_the_stamp(tmp_path: Path) -> None:
    files(tmp_path / "two", 2)
    files(tmp_path / "many", 60)
    assert len(TextFiles([tmp_path / "two"]).stamp("train")) > len(TextFiles([tmp_path / "many"]).stamp("train"))
    own = TextFiles([tmp_path / "two"], held_out=(0, 0)).stamp("train")
    assert len(own) == len(TextFiles([tmp_path / "many"]).stamp("train"))


@pytest.mark.parametrize("text", ["a line of words " * 200 + "\n", "ten lines of some words, forty bytes each\n" * 20])
@pytest.mark.parametrize("count", [1, 2])
def test_long_lines_are_cut_within(tmp_path: Path, text: str, count: int) -> None:
    for i in range(count):
        (tmp_path / f"{i}.txt").write_text(text)
    source = TextFiles([tmp_path])
    parts = [whole(source, split) for split in SPLITS]
    assert min(map(len, parts)) >= LEAST
    assert len("".join(parts)) == count * len(text)
    assert len(source.stamp("train")) > 5  # shards of the whole text are not taken for these


def test_a_large_packed_file_is_not_read_to_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(50 * PIECE)
    monkeypatch.setattr("cosformer.tasks.sources.ends.unpacked_length", None)
    assert TextFiles([path]).stamp("train")


def test_empty_and_too_little_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content, words in (
        (b"", r"a\.txt: the file is empty"), (b"\xef\xbb\xbf", r"a\.txt: the file is empty"),
        (b"one line\n", r"a\.txt: too little text to hold some out from: name files with --valid-data and --test-data"),
    ):  # fmt: skip
        path.write_bytes(content)
        for split in SPLITS:  # before train is tokenised
            with pytest.raises(BadData, match=words):
                TextFiles([path]).stamp(split)
    path.write_text("one line\nand another\n")
    with pytest.raises(BadData, match=r"too few lines \(2\) to hold some out from: name files with --valid-data and"):
        TextFiles([path], document="line").stamp("train")
    with pytest.raises(BadData, match=r"with --test-data, or give more"):
        TextFiles([path], valid=[path]).stamp("train")
    assert whole(TextFiles([path], held_out=(0, 0)), "train") == "one line\nand another\n"
    for name in ("b.txt", "c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(BadData, match="and others: the files are empty"):
        TextFiles([tmp_path]).stamp("train")


def test_empty_files_of_a_folder_are_no_split(tmp_path: Path) -> None:
    texts = files(tmp_path, 3)
    for i in range(40):
        (tmp_path / f"empty{i}.txt").touch()
    source = TextFiles([tmp_path])
    assert {whole(source, split) for split in SPLITS} == set(texts.values())


@pytest.mark.parametrize("kind", ["rows", "lines", "examples"])
def test_few_rows_are_held_out_too(tmp_path: Path, kind: str) -> None:
    for count in (3, 4, 9):
        path = tmp_path / ("a.txt" if kind == "lines" else "a.jsonl")
        rows = [f"text {i}" for i in range(count)]
        path.write_text("\n".join(rows if kind == "lines" else [json.dumps({"text": r, "to": r}) for r in rows]))
        if kind == "examples":
            source = ExampleFiles([path], columns=("text", "to"), label=None)
            parts = [[e.texts[0] for e in source.examples(split)] for split in SPLITS]
        else:
            text = TextFiles([path], document="line")
            parts = [[p.data.decode() for p in text.pieces(split)] for split in SPLITS]
        assert all(parts)
        assert sorted(row for part in parts for row in part) == rows


def test_too_few_rows_of_examples(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "to": "b"}\n{"text": "c", "to": "d"}\n')
    pairs = ExampleFiles([path], columns=("text", "to"), label=None)
    with pytest.raises(BadData, match=r"a\.jsonl: too few rows \(2\) to hold some out from: name .*--valid-data and"):
        pairs.stamp("train")
    path.write_text("\n")
    with pytest.raises(BadData, match=r"a\.jsonl: there are no rows"):
        ExampleFiles([path], columns=("text", "to"), label=None).stamp("train")


def test_files_of_one_name_are_spread_and_stay_when_the_folder_moves(tmp_path: Path) -> None:
    for i in range(60):
        files(tmp_path / "old" / f"book{i}", 1, lines=i + 1)
        (tmp_path / "old" / f"book{i}" / "part0.txt").rename(tmp_path / "old" / f"book{i}" / "text.txt")
    before = {split: whole(TextFiles([tmp_path / "old"]), split) for split in SPLITS}
    lines = {split: len(text.splitlines()) for split, text in before.items()}
    assert lines["train"] > 0.7 * sum(lines.values()) > 0
    assert min(lines.values()) > 0
    by_pattern = TextFiles([str(tmp_path / "old" / "*" / "text.txt")])
    assert {s: sorted(whole(by_pattern, s)) for s in SPLITS} == {s: sorted(t) for s, t in before.items()}
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert before == {split: whole(TextFiles([tmp_path / "new"]), split) for split in SPLITS}


@pytest.mark.parametrize("by", ["folder", "folders", "files"])
def test_rows_of_two_tables_of_one_name_are_held_out_apart(tmp_path: Path, by: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rows = "".join(f"{name}{i}\t{i}\n" for i in range(400))
        (tmp_path / name / "rows.tsv").write_text("text\tto\n" + rows)
    named = {"folder": [tmp_path], "folders": [tmp_path / "a", tmp_path / "b"]}
    paths = named.get(by, [tmp_path / "a" / "rows.tsv", tmp_path / "b" / "rows.tsv"])
    source = ExampleFiles(paths, columns=("text", "to"), label=None)
    valid = [e.texts[0] for e in source.examples("valid")]
    numbers = {name: {text[1:] for text in valid if text[0] == name} for name in ("a", "b")}
    assert numbers["a"]
    assert numbers["a"] != numbers["b"]
    text = TextFiles(paths)
    assert sorted(p.data.decode() for p in text.pieces("valid")) == sorted(valid)
