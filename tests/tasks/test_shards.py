"""Shards hold what was given, are made once, and say when they are not what they were."""

import json
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.tasks_data import Documents, Examples, real, shards_of

from cosformer.tasks import (
    BadData,
    ByteEncoder,
    DamagedShard,
    Marks,
    Progress,
    ShardSet,
    TextFiles,
    encoder_of,
    open_source,
    prepare,
    word_tokenizer,
)  # fmt: skip
from cosformer.tasks.pieces import Piece, Place
from cosformer.tasks.shards.format import shard_name
from cosformer.tasks.shards.workers import WorkerDied, WorkerPool

DOCUMENTS = st.lists(st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=4), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(documents=DOCUMENTS, size=st.integers(1, 30), bos=st.sampled_from([None, 1]), eos=st.sampled_from([None, 2]))
def test_round_trip(
    tmp_path_factory, documents: list[list[bytes]], size: int, bos: int | None, eos: int | None
) -> None:
    folder = tmp_path_factory.mktemp("s")
    marks = {name: token for name, token in (("bos", bos), ("eos", eos)) if token is not None}
    shards = shards_of(folder, documents, shard_bytes=size, **marks)
    texts = [b"".join(document) for document in documents]
    assert shards.documents == len(texts)
    for index, text in enumerate(texts):
        ids = [*([bos] if bos else []), *(3 + byte for byte in text), *([eos] if eos else [])]
        assert shards.read(*shards.document(index)).tolist() == ids
    assert shards.manifest.bytes == sum(map(len, texts))
    assert shards.starts_between(0, shards.tokens).tolist() == [shards.document(i)[0] for i in range(len(texts))]
    whole = shards.read(0, shards.tokens)
    middle = shards.tokens // 3
    assert np.array_equal(shards.read(middle, shards.tokens), whole[middle:])
    copy = pickle.loads(pickle.dumps(shards))
    assert np.array_equal(copy.read(0, copy.tokens), whole)


def test_words_and_lines_are_counted(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [[b" a  bc\n d\n"], [b"e"]], shard_bytes=100)
    assert (shards.manifest.words, shards.manifest.lines) == (4, 2)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"line {i} of the text\n" for i in range(4000)))
    return path


def words_of(path: Path):
    return encoder_of(word_tokenizer([Piece(path.read_bytes(), Place("x", 1))]))


def made(path: Path, folder: Path, **options) -> tuple[ShardSet, list[Progress]]:
    told: list[Progress] = []
    source = TextFiles([path], document="line", held_out=(0, 0))
    options = {"shard_bytes": 10_000, "encoder": ByteEncoder()} | options
    encoder = options.pop("encoder")
    return prepare(source, "train", encoder, folder, progress=told.append, **options), told


def test_processes_make_the_same_shards(corpus: Path, tmp_path: Path) -> None:
    encoder = words_of(corpus)
    one, told = made(corpus, tmp_path / "one", encoder=encoder, workers=0)
    two, _ = made(corpus, tmp_path / "two", encoder=encoder, workers=2)
    assert one.manifest == two.manifest
    assert len(one.manifest.shards) == len(told) - 1 > 5
    assert told[-1].done
    assert told[-1].bytes == one.manifest.bytes
    assert [t.shards for t in told[:-1]] == list(range(1, len(told)))
    names = sorted(p.name for p in (tmp_path / "one" / "train").iterdir())
    assert names == [shard_name(i) for i in range(len(one.manifest.shards))] + ["lock", "manifest.json"]
    for name in names:
        assert (tmp_path / "one" / "train" / name).read_bytes() == (tmp_path / "two" / "train" / name).read_bytes()


def test_nothing_is_done_twice(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "s")
    assert made(corpus, tmp_path / "s")[1] == []
    corpus.touch()  # read again, but nothing has changed
    told = made(corpus, tmp_path / "s")[1]
    assert told[-1].kept == told[-1].shards > 5


def test_a_changed_source_is_noticed_and_what_is_the_same_is_kept(corpus: Path, tmp_path: Path) -> None:
    before = made(corpus, tmp_path / "s")[0].manifest
    with corpus.open("a") as file:
        file.write("more\n" * 5000)
    shards, told = made(corpus, tmp_path / "s")
    assert len(before.shards) - 2 <= told[-1].kept < told[-1].shards
    assert shards.manifest.text_sha256 != before.text_sha256
    corpus.write_text("short\n")
    shards, _ = made(corpus, tmp_path / "s")
    assert shards.tokens == 5
    assert len(list((tmp_path / "s" / "train").glob("*.shard"))) == 1


def test_another_tokenizer_or_other_marks_are_noticed(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "s")
    for options in ({"encoder": words_of(corpus), "workers": 0}, {}, {"marks": Marks(eos=2)}, {"shard_bytes": 9_000}):
        _, told = made(corpus, tmp_path / "s", **options)
        assert told
        assert told[-1].kept == 0


def test_a_damaged_shard_is_named_and_made_again(corpus: Path, tmp_path: Path) -> None:
    shards, _ = made(corpus, tmp_path / "s")
    whole = shards.read(0, shards.tokens)
    third = shards.folder / shard_name(3)

    def flip(data: bytes) -> bytes:
        return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]

    for damage, words in (
        (lambda data: data[:-1], "bytes where"), (lambda data: b"junk" + data[4:], "first page"), (flip, "not those")
    ):  # fmt: skip
        third.write_bytes(damage(third.read_bytes()))
        with pytest.raises(DamagedShard, match=words) as error:
            ShardSet(shards.folder, verify=True)
        assert str(third) in str(error.value)
        heard: list[str] = []
        again, told = made(corpus, tmp_path / "s", verify=True, said=heard.append)
        assert heard == [f"{error.value} (this is done now)"]
        assert told[-1].kept == told[-1].shards - 1
        assert np.array_equal(again.read(0, again.tokens), whole)
    third.unlink()
    with pytest.raises(DamagedShard, match="missing"):
        ShardSet(shards.folder)
    heard = []
    made(corpus, tmp_path / "new", said=heard.append)
    assert heard == []  # where there was none, nothing is damaged
    (shards.folder / "manifest.json").write_text("{")
    with pytest.raises(DamagedShard, match="not a manifest"):
        ShardSet(shards.folder)
    with pytest.raises(DamagedShard, match="never prepared"):
        ShardSet(tmp_path)


def test_a_shard_cut_while_it_is_in_use_is_an_error(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [[b"some text"]])
    path = shards.folder / shard_name(0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedShard, match="prepare the data again"):
        shards.read(0, 3)


def test_two_at_once_wait_for_each_other(corpus: Path, tmp_path: Path) -> None:
    told: list[list[Progress]] = []
    threads = [threading.Thread(target=lambda: told.append(made(corpus, tmp_path / "s")[1])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(bool, told)) == [False, True]


def test_few_shards_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosformer.tasks.shards.shard_set.MAPPED", 2)
    shards = shards_of(tmp_path, [[bytes([i]) * 10] for i in range(20)])
    assert len(shards.manifest.shards) > 10
    assert shards.read(0, 200).tolist() == [3 + i // 10 for i in range(200)]
    assert len(shards._maps) == 2


def test_text_that_is_not_text_names_its_line(corpus: Path, tmp_path: Path) -> None:
    encoder = words_of(corpus)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one\ntwo\nth\xffee\n")
    source = TextFiles([bad], held_out=(0, 0))
    for workers in (0, 1):
        with pytest.raises(BadData, match=r"bad\.txt, line 3: byte 0xff is not UTF-8"):
            prepare(source, "train", encoder, tmp_path / "s", workers=workers)
    assert not list((tmp_path / "s" / "train").glob("*.tmp"))
    assert prepare(source, "train", ByteEncoder(), tmp_path / "b").tokens == 14


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Documents([[b"a"]])
    with pytest.raises(ValueError, match="eos=259, but the vocabulary has 259"):
        prepare(source, "train", ByteEncoder(), tmp_path, marks=Marks(eos=259))
    with pytest.raises(ValueError, match="has no split 'dev'"):
        prepare(source, "dev", ByteEncoder(), tmp_path)
    with pytest.raises(ValueError, match="shard_bytes=0"):
        prepare(source, "train", ByteEncoder(), tmp_path, shard_bytes=0)
    with pytest.raises(BadData, match="has no text"):
        prepare(Documents([]), "train", ByteEncoder(), tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    monkeypatch.setattr(Documents, "expected_bytes", lambda *_: 1000)
    with pytest.raises(OSError, match=r"2,000 bytes are needed .* 10 are free: .*--cache"):
        prepare(source, "train", ByteEncoder(), tmp_path / "new")
    monkeypatch.undo()
    shards = shards_of(tmp_path / "x", [[b"abc"]])
    with pytest.raises(IndexError, match="tokens 2 to 4 of 3"):
        shards.read(2, 4)


def test_a_killed_worker_is_told(corpus: Path, tmp_path: Path) -> None:
    pool = WorkerPool(1, words_of(corpus), "f", Marks())
    from cosformer.tasks.shards.building import Batch

    batch = Batch([Piece(b"line", Place("x", 1))], [])
    pool.submit(tmp_path / shard_name(0), batch, "d").result()
    pool._workers[0].process.kill()
    with pytest.raises(WorkerDied, match=r"killed by SIGKILL.*fewer workers"):
        pool.submit(tmp_path / shard_name(1), batch, "d").result()
    pool.close(now=True)


def test_examples_keep_texts_and_labels(tmp_path: Path) -> None:
    rows = [((f"text {i}", "" if i == 3 else f"other {i}"), i % 2) for i in range(20)]
    shards = prepare(Examples(rows), "train", ByteEncoder(), tmp_path, shard_bytes=50)
    assert len(shards.manifest.shards) > 3
    assert shards.examples == 20
    assert shards.labels().tolist() == [shards.label(i) for i in range(20)] == [i % 2 for i in range(20)]
    texts = [bytes((shards.read(*shards.document(i)) - 3).astype(np.uint8)).decode() for i in range(40)]
    assert texts == [text for pair, _ in rows for text in pair]


def test_real_wikitext_has_the_published_counts(tmp_path: Path) -> None:
    source = open_source("wikitext-2", real("wikitext-2"))
    encoder = encoder_of(word_tokenizer(source.pieces("train")))  # type: ignore[attr-defined]
    assert encoder.vocab_size == 33_278 + 1  # and <pad>
    for split, tokens in (("train", 2_088_628), ("valid", 217_646), ("test", 245_569)):
        shards = prepare(source, split, encoder, tmp_path)
        assert shards.tokens == shards.manifest.words + shards.manifest.lines == tokens
        assert shards.manifest.spelt  # as published: every <unk> is in the text


def test_tokens_that_spell_nothing_are_counted(tmp_path: Path) -> None:
    """<unk> of the text itself apart: so it is in WikiText, whose tokens say all there is."""
    pieces = [[b"a b <unk> c\n", b"a zzz\n"], [b"<unk>\n"], [b"x<unk> b\n"]]
    encoder = encoder_of(word_tokenizer([Piece(b"a b c", Place("x", 1))]))
    folder = tmp_path / "some"
    found = prepare(Documents(pieces), "train", encoder, folder, shard_bytes=8, workers=0).manifest
    assert (found.unknown, found.unknown_written, found.spelt) == (4, 2, False)
    assert found.unknown_share == 4 / found.tokens
    whole = prepare(Documents(pieces[1:2] * 3), "train", encoder, tmp_path / "all", workers=0).manifest
    assert (whole.unknown, whole.unknown_written, whole.spelt) == (3, 3, True)
    of_bytes = shards_of(tmp_path / "bytes", pieces).manifest
    assert (of_bytes.unknown, of_bytes.unknown_written, of_bytes.spelt) == (0, 0, True)
    (folder / "train" / "manifest.json").unlink()  # killed before its end: shards are kept, and counted
    assert prepare(Documents(pieces), "train", encoder, folder, shard_bytes=8, workers=0).manifest == found


def test_manifests_from_before_the_count_are_read_and_completed(tmp_path: Path) -> None:
    pieces = [[b"a b <unk> zzz\n"]]
    encoder = encoder_of(word_tokenizer([Piece(b"a b c", Place("x", 1))]))
    found = prepare(Documents(pieces), "train", encoder, tmp_path, workers=0).manifest
    path, shard = tmp_path / "train" / "manifest.json", tmp_path / "train" / shard_name(0)
    before, written = json.loads(path.read_text()), shard.stat().st_mtime_ns
    del before["unknown"], before["unknown_written"]
    path.write_text(json.dumps(before))
    assert ShardSet(tmp_path / "train").manifest.unknown is None
    assert prepare(Documents(pieces), "train", encoder, tmp_path, workers=0).manifest == found
    assert shard.stat().st_mtime_ns == written


def test_progress_is_never_past_its_end(tmp_path: Path) -> None:
    class Misjudged(Documents):
        def expected_bytes(self, split: str) -> int:
            return 10

    told: list[Progress] = []
    source = Misjudged([[b"seven b"], [b"seven c"], [b"seven d"]])
    prepare(source, "train", ByteEncoder(), tmp_path, shard_bytes=7, progress=told.append)
    assert [(p.bytes, p.expected) for p in told] == [(7, 10), (14, 14), (21, 21), (21, 21)]
