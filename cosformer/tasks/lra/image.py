"""Image of the arena: what does a grey picture show? CIFAR-10, pixel by pixel; the last tenth of train validates."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosformer.tasks.errors import BadData, SourceMissing
from cosformer.tasks.lra.source import LraSource
from cosformer.tasks.lra.vocabularies import PixelEncoder, picture_text, pixel_tokenizer
from cosformer.tasks.pieces import Example, Place
from cosformer.tasks.sources.files import first_of, open_bytes
from cosformer.tasks.sources.source import TEST, TRAIN, stamp_files

PIXELS = 32 * 32
RECORD = 1 + 3 * PIXELS  # a label, then red, green and blue
WEIGHTS = np.array([0.2989, 0.5870, 0.1140])  # of red, green and blue: those of the arena, that sum to 0.9999
GREY = "cifar10-gray.npz"
BATCHES = {TRAIN: [f"data_batch_{i}.bin" for i in range(1, 6)], TEST: ["test_batch.bin"]}
FOLDERS = ("", "cifar-10-batches-bin")
WHERE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
HELD_OUT = 10  # one in ten, the last
TEXT_BYTES = 1_490  # of a picture as text, near enough for a progress bar

Bytes = NDArray[np.uint8]


class LraImage(LraSource):
    """The binary version of CIFAR-10 as published, or cifar10-gray.npz (x_train, y_train, x_test, y_test)."""

    name = "lra-image"
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    encoder = PixelEncoder()
    tokenizer = staticmethod(pixel_tokenizer)
    length, even = PIXELS, True

    def __init__(self, path: str | Path | None = None) -> None:
        place = None if path is None else Path(path).expanduser()
        self.table: Path | None = None
        self.batches: dict[str, list[Path]] = {}
        if place is not None and place.is_file():
            self.table = place
        elif place is not None:
            self.table = first_of(place, [GREY])
            for folder in FOLDERS:
                found = {part: [first_of(place / folder, [name]) for name in names] for part, names in BATCHES.items()}
                if all(file is not None for files in found.values() for file in files):
                    self.batches = {part: [f for f in files if f is not None] for part, files in found.items()}
        if self.table is None and not self.batches:
            raise SourceMissing(_missing(place))

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        return [split, HELD_OUT, stamp_files([self.table] if self.table else self.batches[_part(split)])]

    def expected_bytes(self, split: str) -> int:
        return TEXT_BYTES * {TRAIN: 45_000, TEST: 10_000}.get(split, 5_000)

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        files = self.batches.get(_part(split), [])
        read = [_read_batch(file) for file in files] if self.table is None else [_read_table(self.table, _part(split))]
        total = sum(len(labels) for _, _, labels in read)  # all of train: 51 MB
        cut = total - total // HELD_OUT
        first, end = {TRAIN: (0, cut), TEST: (0, total)}.get(split, (cut, total))
        if first == end:
            raise BadData(f"{self.table or files[0]}: no pictures for split {split!r}: there are {total} in all")
        number = 0
        for file, pictures, labels in read:
            for i, (picture, label) in enumerate(zip(pictures, labels.tolist(), strict=True), 1):
                if first <= number < end:
                    place = Place(str(file), i)  # a picture has no line: its number
                    if label >= len(self.classes):
                        raise BadData(f"{place}: label {label}: CIFAR-10 has {len(self.classes)} classes, from 0 on")
                    yield Example((picture_text(picture),), label, place)
                number += 1


def _part(split: str) -> str:
    return TEST if split == TEST else TRAIN


def _missing(place: Path | None) -> str:
    looked = "no path was given"
    if place is not None:
        looked = f"looked for data_batch_1.bin … data_batch_5.bin, test_batch.bin, or {GREY}, in {place}"
        if any((place / folder / "data_batch_1").is_file() for folder in ("", "cifar-10-batches-py")):
            looked += " and found the Python version: pickles can run any code, so they are not opened"
    return f"lra-image: {looked}. Get the binary version from {WHERE}, unpack it, and name the folder with --data"


def _read_batch(file: Path) -> tuple[Path, Bytes, Bytes]:
    """Pictures turned to grey, [n, 1024], and labels of a binary batch."""
    with open_bytes(file) as stream:
        data = stream.read()
    if not data or len(data) % RECORD:
        raise BadData(
            f"{file}: {len(data):,} bytes, where each picture of the binary version takes {RECORD:,}: it is cut short "
            f"or another file; get it from {WHERE}"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    colours = records[:, 1:].reshape(-1, 3, PIXELS)
    return file, np.round(np.einsum("npx,p->nx", colours, WEIGHTS)).astype(np.uint8), records[:, 0]


def _read_table(file: Path, part: str) -> tuple[Path, Bytes, Bytes]:
    with open_bytes(file) as stream:
        data = io.BytesIO(stream.read())
        try:
            with np.load(data, allow_pickle=False) as table:
                pictures, labels = table[f"x_{part}"], table[f"y_{part}"]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadData(f"{file}: not an npz with x_{part} and y_{part} ({error})") from error
    if pictures.dtype != np.uint8 or pictures.shape != (len(labels), PIXELS) or labels.ndim != 1:
        raise BadData(
            f"{file}: x_{part} is {pictures.dtype} {pictures.shape} and y_{part} {labels.shape}: grey pictures, uint8 "
            f"[n, {PIXELS}], and n labels were expected"
        )
    return file, pictures, labels
