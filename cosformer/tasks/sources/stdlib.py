"""The sources of Python's standard library: text that is on every machine."""

import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import SourceMissing
from cosformer.tasks.pieces import Piece
from cosformer.tasks.sources.source import TextSource, split_by_hash
from cosformer.tasks.sources.text_files import read_text

LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3", "idlelib"}
"""Other people's packages, and parts that some systems ship apart."""


class StandardLibrary(TextSource):
    """A file is a document; the hash of its path says to which split it belongs, so nothing of a file is in two."""

    name = "stdlib"

    def __init__(self, path: str | Path | None = None) -> None:
        self.root = Path(path or sysconfig.get_paths()["stdlib"])
        self.files = sorted(self._sources(), key=lambda p: p.relative_to(self.root).as_posix())
        if not self.files:
            raise SourceMissing(
                f"stdlib: no .py files below {self.root}: this Python keeps them elsewhere; name the folder with --data"
            )

    def _sources(self) -> Iterator[Path]:
        for path in self.root.rglob("*.py"):
            folders = path.relative_to(self.root).parts[:-1]
            if not LEFT_OUT.intersection(folders) and not any(f.startswith("config-") for f in folders):
                yield path

    def _of(self, split: str) -> list[Path]:
        self.check_split(split)
        return [p for p in self.files if split_by_hash(p.relative_to(self.root).as_posix()) == split]

    def stamp(self, split: str) -> Any:
        files = [(p, p.stat()) for p in self._of(split)]
        listed = [[p.relative_to(self.root).as_posix(), s.st_size, s.st_mtime_ns] for p, s in files]
        return [platform.python_version(), listed]

    def expected_bytes(self, split: str) -> int:
        return sum(path.stat().st_size for path in self._of(split))

    def pieces(self, split: str) -> Iterator[Piece]:
        for path in self._of(split):
            yield from read_text(path)
