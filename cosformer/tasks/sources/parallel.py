"""Two files whose lines belong together; Multi30k is published so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData, SourceMissing
from cosformer.tasks.pieces import Example, Place
from cosformer.tasks.sources.files import first_of
from cosformer.tasks.sources.source import TRAIN, ExampleSource, stamp_files
from cosformer.tasks.sources.tables import lines_of

MULTI30K = {
    TRAIN: ("train",), "valid": ("val", "valid"), "test": ("test_2016_flickr", "test2016", "flickr2016"),
    "test2017": ("test_2017_flickr", "test2017", "flickr2017"),
}  # fmt: skip


class ParallelLines(ExampleSource):
    """Line n of the first file is to become line n of the second."""

    texts = 2

    def __init__(self, files: dict[str, tuple[Path, Path]], *, name: str = "parallel") -> None:
        self.name, self.files, self.splits = name, files, tuple(files)

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        return stamp_files(self.files[split])

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        first, second = self.files[split]
        ours, theirs, number = lines_of(first), lines_of(second), 0
        while True:
            pair = next(ours, None), next(theirs, None)
            if pair[0] is None or pair[1] is None:
                break
            number += 1
            yield Example((pair[0][1], pair[1][1]), None, pair[0][0])
        if pair != (None, None):
            short, long = (first, second) if pair[0] is None else (second, first)
            raise BadData(
                f"{Place(str(short), number + 1)}: the file ends, but {long} goes on: line n of one belongs to line n "
                "of the other, so both must have as many"
            )
        if not number:
            raise BadData(f"{first}: the file is empty: there are no pairs in it")


def multi30k(path: str | Path | None, *, source: str = "de", target: str = "en") -> ParallelLines:
    """Captions of pictures, German and English (and others, where their files are there). test is 2016 flickr."""
    folder = None if path is None else Path(path).expanduser()
    files: dict[str, tuple[Path, Path]] = {}
    for split, names in MULTI30K.items():
        ends = [[f"{n}.{e}" for n in names] for e in (source, target)]
        found = [None if folder is None else first_of(folder, wanted) for wanted in ends]
        if found[0] is not None and found[1] is not None:
            files[split] = (found[0], found[1])
        elif split in (TRAIN, "valid"):
            looked = "no path was given" if path is None else f"looked for {ends[0][0]} and {ends[1][0]} in {path}"
            raise SourceMissing(
                f"multi30k: {looked}. Get task 1, raw, from https://github.com/multi30k/dataset and name the folder "
                "with --data"
            )
    return ParallelLines(files, name=f"multi30k-{source}-{target}")
