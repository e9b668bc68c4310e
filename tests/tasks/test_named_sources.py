"""Each named source reads its published layout, and says where to get it when it is absent."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest
from tasks.tasks_data import real

from cosformer.tasks import NAMED, BadData, ExampleSource, SourceMissing, TextSource, open_source
from cosformer.tasks.sources import enwik8

MADE = {"stdlib", "lra-listops", "lra-pathfinder"}  # need no files
FORMS = MADE | {
    "enwik8", "wikitext-2", "wikitext-103", "sst2", "qqp", "mnli", "imdb", "amazon", "multi30k", "lra-text",
    "lra-retrieval", "lra-image",
}  # fmt: skip


def test_all_are_there() -> None:
    assert set(NAMED) == FORMS
    with pytest.raises(ValueError, match=r"did you mean wikitext-2\?"):
        open_source("wikitext2")


@pytest.mark.parametrize("name", sorted(FORMS - MADE))
@pytest.mark.parametrize("given", [True, False], ids=["empty-folder", "no-path"])
def test_an_absent_source_says_what_where_and_how(tmp_path: Path, name: str, given: bool) -> None:
    with pytest.raises(SourceMissing) as error:
        open_source(name, tmp_path if given else None)
    message = str(error.value)
    assert "--data" in message
    assert "https://" in message
    assert (f"in {tmp_path}" in message or f"at {tmp_path}" in message) == given


def text(source: object, split: str) -> bytes:
    assert isinstance(source, TextSource)
    return b"".join(piece.data for piece in source.pieces(split))


def rows(source: object, split: str) -> list[tuple[tuple[str, ...], int | None]]:
    assert isinstance(source, ExampleSource)
    return [(example.texts, example.label) for example in source.examples(split)]


def test_the_standard_library_is_split_by_file() -> None:
    source = open_source("stdlib")
    files = {s: [p.place.file for p in source.pieces(s) if p.first] for s in source.splits}  # type: ignore[attr-defined]
    assert len(files["train"]) > 300
    assert all(len(files[s]) > 10 for s in ("valid", "test"))
    assert not set(files["train"]) & set(files["valid"]) | set(files["valid"]) & set(files["test"])
    assert files["train"] == sorted(files["train"])
    assert not any("site-packages" in name or "/test/" in name for part in files.values() for name in part)
    assert len(text(source, "test")) == source.expected_bytes("test")


def test_enwik8_is_cut_where_all_cut_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enwik8, "RANGES", {"train": (0, 90), "valid": (90, 95), "test": (95, 100)})
    data = bytes(range(100))
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
        archive.writestr("enwik8", data)
    for place in (tmp_path, tmp_path / "enwik8.zip"):
        source = open_source("enwik8", place)
        assert [text(source, split) for split in source.splits] == [data[:90], data[90:95], data[95:]]
    (tmp_path / "enwik8").write_bytes(data[:97])
    with pytest.raises(BadData, match="97 bytes where enwik8 has"):
        text(open_source("enwik8", tmp_path / "enwik8"), "test")


@pytest.mark.parametrize("name", ["wiki.{}.tokens", "wiki.{}.raw", "{}.txt.gz"])
def test_wikitext_in_its_forms(tmp_path: Path, name: str) -> None:
    for split in ("train", "valid", "test"):
        data = f" = {split} = \n".encode()
        (tmp_path / name.format(split)).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    source = open_source("wikitext-103", tmp_path)
    assert text(source, "valid") == b" = valid = \n"
    assert source.name == "wikitext-103"


def test_glue(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nfine \t1\nbad\t0\n")
    (tmp_path / "dev.tsv").write_text('sentence\tlabel\n"quoted\t1\n')
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tx\n")
    source = open_source("sst2", tmp_path)
    assert rows(source, "train") == [(("fine ",), 1), (("bad",), 0)]
    assert rows(source, "valid") == [(('"quoted',), 1)]
    with pytest.raises(BadData, match="there are index, sentence; GLUE's test files have no"):
        rows(source, "test")
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nfine\t7\n")
    with pytest.raises(BadData, match=r"train\.tsv, line 2: label '7' is none of negative, positive"):
        rows(open_source("sst2", tmp_path), "train")
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nfine\n")
    with pytest.raises(BadData, match=r"train\.tsv, line 2: 1 cells"):
        rows(open_source("sst2", tmp_path), "train")


def test_qqp_leaves_out_its_broken_rows(tmp_path: Path) -> None:
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    (tmp_path / "train.tsv").write_text(head + "0\t1\t2\tWhy?\tHow?\t0\n7\t8\n1\t3\t4\tA?\tA ?\t1\n")
    (tmp_path / "dev.tsv").write_text(head + "0\t1\t2\tB?\tC?\t0\n")
    source = open_source("qqp", tmp_path)
    assert rows(source, "train") == [(("Why?", "How?"), 0), (("A?", "A ?"), 1)]
    assert source.splits == ("train", "valid")


def test_mnli_has_two_validation_splits(tmp_path: Path) -> None:
    head = "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
    for name in ("train", "dev_matched", "dev_mismatched"):
        (tmp_path / f"{name}.tsv").write_text(head + "0\tg\tA\tB\tneutral\tcontradiction\n1\tg\tC\tD\tneutral\t-\n")
    source = open_source("mnli", tmp_path)
    assert source.splits == ("train", "valid_matched", "valid_mismatched")
    assert rows(source, "valid_matched") == [(("A", "B"), 2)]


def test_imdb_in_both_forms_holds_out_from_train(tmp_path: Path) -> None:
    published, tables = tmp_path / "p", tmp_path / "t"
    tables.mkdir()
    for part in ("train", "test"):
        reviews = []
        for label, name in enumerate(("neg", "pos")):
            folder = published / "aclImdb" / part / name
            folder.mkdir(parents=True)
            for i in range(60):
                (folder / f"{i:02d}_1.txt").write_text(f"{part} {name} {i}")
                reviews.append({"label": label, "text": f"{part} {name} {i}"})
        (tables / f"{part}.jsonl").write_text("\n".join(map(json.dumps, reviews)))
    found = [open_source("imdb", path) for path in (published, tables)]
    for split in ("train", "valid", "test"):
        assert rows(found[0], split) == rows(found[1], split)
    assert len(rows(found[0], "train")) + len(rows(found[0], "valid")) == len(rows(found[0], "test")) == 120
    assert 2 <= len(rows(found[0], "valid")) <= 30
    assert all(texts[0].startswith("train") for texts, _ in rows(found[0], "valid"))


def test_amazon_in_both_forms(tmp_path: Path) -> None:
    polarity, stars = tmp_path / "p", tmp_path / "s"
    polarity.mkdir()
    stars.mkdir()
    for part in ("train", "test"):
        (polarity / f"{part}.csv").write_text('"2","Title","Some ""text"""\n"1","Bad","Worse"\n' * 50)
    source = open_source("amazon", polarity)
    assert rows(source, "test")[:2] == [(('Title\nSome "text"',), 1), (("Bad\nWorse",), 0)]
    assert len(rows(source, "train")) + len(rows(source, "valid")) == 100
    reviews = [{"overall": 1.0 + i % 5, "reviewText": f"r{i}"} for i in range(500)] + [{"overall": 5.0}]
    (stars / "Books_5.json.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, reviews)).encode()))
    source = open_source("amazon", stars)
    found = [row for split in source.splits for row in rows(source, split)]
    assert len(found) == 400
    assert all(label == (int(texts[0][1:]) % 5 > 2) for texts, label in found)
    (polarity / "test.csv").write_text('"3","a","b"\n')
    with pytest.raises(BadData, match=r"test\.csv, line 1: class '3'"):
        rows(open_source("amazon", polarity), "test")


def test_multi30k_in_both_directions(tmp_path: Path) -> None:
    for name in ("train", "val", "test_2016_flickr"):
        (tmp_path / f"{name}.de.gz").write_bytes(gzip.compress(b"Ein Hund.\n"))
        (tmp_path / f"{name}.en").write_text("A dog.\n")
    source = open_source("multi30k", tmp_path)
    assert source.splits == ("train", "valid", "test")
    assert rows(source, "test") == [(("Ein Hund.", "A dog."), None)]
    assert rows(open_source("multi30k", tmp_path, source="en", target="de"), "train") == [
        (("A dog.", "Ein Hund."), None)
    ]


@pytest.mark.parametrize(
    ("name", "folder", "split", "count"),
    [
        ("sst2", "sst2", "train", 67_349), ("sst2", "sst2", "valid", 872), ("sst2", "sst2", "test", 1_821),
        ("imdb", "imdb", "test", 25_000), ("multi30k", "multi30k", "train", 29_000),
    ],
)  # fmt: skip
def test_real_examples_are_as_many_as_published(name: str, folder: str, split: str, count: int) -> None:
    assert len(rows(open_source(name, real(folder)), split)) == count


def test_real_enwik8() -> None:
    source = open_source("enwik8", real("enwik8"))
    assert len(text(source, "valid")) == len(text(source, "test")) == 5_000_000
