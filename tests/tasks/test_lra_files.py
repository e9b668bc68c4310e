"""Text, Image and Retrieval of the arena read their published layouts."""

import gzip
import io
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from tasks.tasks_data import real

from cosformer.tasks import (
    BadData,
    ByteEncoder,
    ExampleSource,
    LabelledTexts,
    SourceMissing,
    encoder_of,
    open_source,
    prepare,
)
from cosformer.tasks.lra.image import LraImage
from cosformer.tasks.lra.source import LraSource
from cosformer.tasks.lra.vocabularies import PixelEncoder

RANDOM = np.random.default_rng(0)


def pictures(source: object, split: str) -> list[tuple[list[int], int | None]]:
    assert isinstance(source, ExampleSource)
    return [(PixelEncoder().encode([e.texts[0].encode()])[0].tolist(), e.label) for e in source.examples(split)]


def binary(count: int) -> tuple[np.ndarray, np.ndarray]:
    return RANDOM.integers(0, 256, (count, 3, 1024), np.uint8), RANDOM.integers(0, 10, count).astype(np.uint8)


def test_cifar_as_published(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    batches = {f"data_batch_{i}.bin": binary(4) for i in range(1, 6)} | {"test_batch.bin": binary(3)}
    for name, (colours, labels) in batches.items():
        records = [bytes([label]) + picture.tobytes() for picture, label in zip(colours, labels, strict=True)]
        (folder / name).write_bytes(b"".join(records))
    expected = []
    for colours, labels in batches.values():
        for (red, green, blue), label in zip(colours.tolist(), labels.tolist(), strict=True):
            grey = [round(0.2989 * r + 0.587 * g + 0.114 * b) for r, g, b in zip(red, green, blue, strict=True)]
            expected.append((grey, label))
    for place in (tmp_path, folder):
        source = open_source("lra-image", place)
        assert pictures(source, "train") == expected[:18]
        assert pictures(source, "valid") == expected[18:20]  # the last tenth of train
        assert pictures(source, "test") == expected[20:]
    (folder / "data_batch_3.bin").write_bytes(b"x" * 3074)
    with pytest.raises(BadData, match=r"data_batch_3\.bin: 3,074 bytes, where each picture .* takes 3,073"):
        pictures(open_source("lra-image", tmp_path), "train")
    (folder / "data_batch_3.bin").write_bytes(b"\x0b" + bytes(3072))
    with pytest.raises(BadData, match=r"data_batch_3\.bin, line 1: label 11: CIFAR-10 has 10"):
        pictures(open_source("lra-image", tmp_path), "train")


def test_cifar_in_grey(tmp_path: Path) -> None:
    table = {f"x_{p}": RANDOM.integers(0, 256, (n, 1024), np.uint8) for p, n in (("train", 20), ("test", 5))}
    table |= {f"y_{p}": RANDOM.integers(0, 10, n).astype(np.uint8) for p, n in (("train", 20), ("test", 5))}
    np.savez(tmp_path / "cifar10-gray.npz", **table)
    packed = tmp_path / "packed" / "cifar10-gray.npz.xz"
    packed.parent.mkdir()
    packed.write_bytes(lzma.compress((tmp_path / "cifar10-gray.npz").read_bytes()))
    for place in (tmp_path, packed.parent, packed):
        source = open_source("lra-image", place)
        found = {split: pictures(source, split) for split in source.splits}
        assert [len(rows) for rows in found.values()] == [18, 2, 5]
        assert [pixels for pixels, _ in found["train"] + found["valid"]] == table["x_train"].tolist()
        assert [label for _, label in found["test"]] == table["y_test"].tolist()
    shards = prepare(open_source("lra-image", packed), "valid", PixelEncoder(), tmp_path / "s", workers=0)
    assert LabelledTexts(shards, 1024)[1]["input_ids"].tolist() == table["x_train"][19].tolist()
    assert shards.manifest.classes[3] == "cat"


@pytest.mark.parametrize("kind", ["text", "names", "floats", "objects", "cut"])
def test_another_table_is_refused(tmp_path: Path, kind: str) -> None:
    file, data = tmp_path / "cifar10-gray.npz", io.BytesIO()
    x, y = np.zeros((10, 1024), np.uint8), np.zeros(10, np.uint8)
    if kind == "names":
        np.savez(data, x=x, y=y)
    elif kind == "floats":
        np.savez(data, x_train=x.astype(float), y_train=y)
    elif kind == "objects":  # what would be a pickle inside
        np.savez(data, x_train=np.array([{}], object), y_train=y)
    elif kind == "cut":
        np.savez(data, x_train=x, y_train=y)
        data = io.BytesIO(data.getvalue()[:-40])
    else:
        data.write(b"hello")
    file.write_bytes(data.getvalue())
    with pytest.raises(BadData, match=r"cifar10-gray\.npz: "):
        pictures(open_source("lra-image", tmp_path), "train")


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(SourceMissing, match="the Python version: pickles can run any code"):
        LraImage(tmp_path)


def aan(folder: Path, rows: dict[str, str], ending: str = "") -> Path:
    folder.mkdir(parents=True)
    for split, text in rows.items():
        data = text.encode()
        (folder / f"new_aan_pairs.{split}.tsv{ending}").write_bytes(gzip.compress(data) if ending else data)
    return folder


ROWS = {
    "train": "1.0\tP01-1\tP02-2\tOne \"quoted\\n text\tTwo é\n0.0\tA\tB\tb'three'\tfour\n",
    "eval": "1\tA\tB\tv\tw\r\n",
    "test": "0\tA\tB\tx\ty\n",
}


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("inner", ["", "lra_release/lra_release/tsv_data", "tsv_data"])
def test_pairs_of_the_release(tmp_path: Path, inner: str, ending: str) -> None:
    aan(tmp_path / "r" / inner, ROWS, ending)
    source = open_source("lra-retrieval", tmp_path / "r")
    assert isinstance(source, LraSource)
    rows = {split: [(e.texts, e.label) for e in source.examples(split)] for split in source.splits}
    assert rows["train"] == [(('One "quoted\\n text', "Two é"), 1), (("b'three'", "four"), 0)]
    assert rows["valid"] == [(("v", "w"), 1)]
    assert rows["test"] == [(("x", "y"), 0)]
    shards = prepare(source, "train", source.encoder, tmp_path / "s")
    item = LabelledTexts(shards, 4_000, apart=True)[0]
    assert bytes(i - 3 for i in item["other_input_ids"].tolist()).decode() == "Two é"
    assert (shards.manifest.texts, shards.manifest.vocab_size) == (2, 259)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1\tA\tB\tv\n", "line 1: 4 cells where there should be 5: label, id1"),
        ("1\tA\tB\tv\tw\n2\tA\tB\tv\tw\n", "line 2: label '2': 0"),
        ("label\tid1\tid2\ttext1\ttext2\n", "line 1: label 'label'"),
        ("\n", "the file is empty"),
    ],
)
def test_wrong_pairs_are_refused(tmp_path: Path, text: str, words: str) -> None:
    source = open_source("lra-retrieval", aan(tmp_path / "r", ROWS | {"train": text}))
    assert isinstance(source, ExampleSource)
    with pytest.raises(BadData, match=rf"new_aan_pairs\.train\.tsv.*{words}"):
        list(source.examples("train"))


def test_text_is_imdb_in_bytes(tmp_path: Path) -> None:
    for part in ("train", "test"):
        rows = [{"label": i % 2, "text": f"{part} é {i}"} for i in range(60)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source, imdb = open_source("lra-text", tmp_path), open_source("imdb", tmp_path)
    assert isinstance(source, LraSource)
    assert isinstance(imdb, ExampleSource)
    for split in source.splits:
        assert list(source.examples(split)) == list(imdb.examples(split))
    shards = prepare(source, "valid", source.encoder, tmp_path / "s")
    assert isinstance(source.encoder, ByteEncoder)
    assert shards.manifest.source == "lra-text"


@pytest.mark.parametrize(("split", "count"), [("train", 45_000), ("valid", 5_000), ("test", 10_000)])
def test_real_pictures_are_as_many_as_customary(split: str, count: int) -> None:
    source = open_source("lra-image", real("cifar10-gray"))
    assert isinstance(source, ExampleSource)
    sizes = [len(example.texts[0]) for example in source.examples(split)]
    assert (len(sizes), set(sizes)) == (count, {1_024})


@pytest.mark.parametrize("name", ["lra-listops", "lra-pathfinder"])
def test_the_tokenizer_survives_being_saved_with_a_model(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="models: pip install cosformer[models]")
    source = open_source(name, sizes=(3, 1, 1), workers=0)
    assert isinstance(source, LraSource)
    assert source.tokenizer is not None
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=source.tokenizer(), pad_token="<pad>", mask_token="<mask>", clean_up_tokenization_spaces=False
    )
    tokenizer.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [example.texts[0].encode() for example in source.examples("train")]
    expected = [ids.tolist() for ids in source.encoder.encode(texts)]
    assert [ids.tolist() for ids in encoder_of(again).encode(texts)] == expected
    assert [again(text.decode())["input_ids"] for text in texts] == expected
    assert len(again) == source.encoder.vocab_size
    assert not any(again.mask_token_id in ids for ids in expected)
