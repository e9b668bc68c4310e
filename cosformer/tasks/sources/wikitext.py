"""WikiText-2 and WikiText-103 as published: a running text per split, words apart, <unk> for rare ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import SourceMissing
from cosformer.tasks.pieces import Piece
from cosformer.tasks.sources.files import first_of
from cosformer.tasks.sources.source import TextSource, stamp_files
from cosformer.tasks.sources.text_files import read_text

NAMES = ("wiki.{split}.tokens", "wiki.{split}.raw", "{split}.txt", "{split}.tokens")


class WikiText(TextSource):
    """Folder with wiki.{train,valid,test}.tokens (or .raw), or {train,valid,test}.txt, packed or not."""

    document_marks = False

    def __init__(self, path: str | Path | None, *, size: int = 2) -> None:
        self.name = f"wikitext-{size}"
        self.files: dict[str, Path] = {}
        folder = None if path is None else Path(path).expanduser()
        for split in self.splits:
            found = None if folder is None else first_of(folder, [name.format(split=split) for name in NAMES])
            if found is None:
                wanted = ", ".join(name.format(split=split) for name in NAMES)
                looked = "no path was given" if path is None else f"looked for one of {wanted} (or packed) in {path}"
                raise SourceMissing(
                    f"{self.name}: {looked}. Get it from https://huggingface.co/datasets/Salesforce/wikitext or as "
                    f"wikitext-{size}-v1.zip, unpack it, and name the folder with --data"
                )
            self.files[split] = found

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        return stamp_files([self.files[split]])

    def pieces(self, split: str) -> Iterator[Piece]:
        self.check_split(split)
        yield from read_text(self.files[split], named=True)
