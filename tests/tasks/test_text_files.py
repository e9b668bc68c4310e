"""Pieces of text files join to the file, wherever they are cut."""

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosformer.tasks.errors import BadData, SourceMissing
from cosformer.tasks.sources import text_files
from cosformer.tasks.sources.files import find_files, kind_of, open_bytes
from cosformer.tasks.sources.text_files import line_end_after, read_text, unpacked_length


@settings(deadline=None, max_examples=60)
@given(
    text=st.text(st.sampled_from("aé漢😀\n "), max_size=80),
    size=st.integers(8, 20),
    document=st.sampled_from(text_files.DOCUMENTS),
)
def test_pieces_join_to_documents(tmp_path_factory, text: str, size: int, document: str) -> None:
    path = tmp_path_factory.mktemp("t") / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "PIECE", size)
        pieces = list(read_text(path, document=document))
    found, documents = b"", []
    for piece in pieces:
        assert 0 < len(piece.data) <= size
        assert piece.first == (not found)
        found += piece.data
        piece.data.decode()  # cut between letters
        if piece.last:
            documents.append(found)
            found = b""
    assert not found
    if document == "file":
        assert documents == ([text.encode()] if text else [])
    elif document == "line":
        lines = text.encode().split(b"\n")
        assert documents == [line for line in lines if line]
    else:
        assert b"".join(documents).split() == text.encode().split()
        assert all(b"\n\n" not in d for d in documents)


def test_lines_end_as_they_do_on_windows_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n\r\nthree")
    found = [(p.data, p.place.line) for p in read_text(tmp_path / "a.txt", document="line")]
    assert found == [(b"one", 1), (b"two", 2), (b"three", 4)]


@pytest.mark.parametrize("document", text_files.DOCUMENTS)
def test_a_mark_at_the_beginning_is_no_text(tmp_path: Path, document: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone")
    assert [p.data for p in read_text(path, document=document)] == [b"one"]
    path.write_text("one \ufeff two")
    assert [p.data.decode() for p in read_text(path, document=document)] == ["one \ufeff two"]


def test_ranges_cover_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\nfour\n")
    cut = line_end_after(path, 5)
    assert cut == 8
    parts = [b"".join(p.data for p in read_text(path, start=a, stop=b)) for a, b in ((0, cut), (cut, 19))]
    assert parts == [b"one\ntwo\n", b"three\nfour\n"]
    assert next(read_text(path, start=cut)).place.line == 3


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2", ".zip"])
def test_packed_files_read_the_same(tmp_path: Path, ending: str) -> None:
    path, text = tmp_path / f"a.txt{ending}", b"some text\n" * 5
    if ending == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", text)
    else:
        packers = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
        path.write_bytes(packers[ending](text))
    assert b"".join(p.data for p in read_text(path)) == text
    assert unpacked_length(path) == len(text)
    assert kind_of(path) == "text"


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zip"])
@pytest.mark.parametrize("damage", ["cut", "junk"])
def test_a_damaged_file_is_named(tmp_path: Path, ending: str, damage: str) -> None:
    path, text = tmp_path / f"a.txt{ending}", bytes(range(256)) * 50
    if ending == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", text)
    else:
        path.write_bytes({".gz": gzip, ".xz": lzma, ".bz2": bz2}[ending].compress(text))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"not packed at all")
    with pytest.raises(BadData, match=str(path)), open_bytes(path) as stream:
        stream.read()


def test_folders_patterns_and_what_is_absent(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "sub/c.csv.gz", ".hidden/d.txt", "e.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = find_files([tmp_path])
    assert [(f.path.name, f.kind) for f in found] == [("a.jsonl", "jsonl"), ("b.txt", "text"), ("c.csv.gz", "csv")]
    assert [f.path.name for f in find_files([str(tmp_path / "*.bin")])] == ["e.bin"]
    assert find_files([tmp_path / "e.bin"])[0].kind == "text"
    for wrong, words in (
        ([], "no files were named"),
        ([tmp_path / "no"], "no such file"),
        ([str(tmp_path / "*.no")], "pattern"),
    ):
        with pytest.raises(SourceMissing, match=words) as error:
            find_files(wrong)
        assert "--data" in str(error.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceMissing, match=r"no files; wanted \.txt"):
        find_files([tmp_path / "empty"])


def test_an_empty_file_is_refused_when_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"")
    assert list(read_text(path)) == []
    with pytest.raises(BadData, match="the file is empty"):
        list(read_text(path, named=True))
    with pytest.raises(ValueError, match="use one of file, line"):
        list(read_text(path, document="page"))
