"""Finds files (named, in folders, by pattern) and opens them, packed or not."""

import bz2
import glob
import gzip
import lzma
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

from cosformer.tasks.errors import BadData, SourceMissing


def _only_member(path: Path, mode: str) -> IO[bytes]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if len(names) != 1:
            raise BadData(f"{path}: an archive of {len(names)} files: unpack it and name the folder")
        return archive.open(names[0])


PACKED: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zip": _only_member}
KINDS = {
    ".txt": "text", ".text": "text", ".md": "text", ".py": "text", ".raw": "text", ".tokens": "text",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet",
}  # fmt: skip


class Found(NamedTuple):
    path: Path
    kind: str
    """text, jsonl, csv, tsv or parquet."""
    named: bool
    """Named by the user rather than found in a folder: it may not be empty."""
    key: str
    """What hashes call it: its path inside the folder that was named, so that the whole folder can move."""


def kind_of(path: Path) -> str | None:
    """By the ending, packed or not; None where the ending says nothing."""
    endings = path.suffixes[-2:]
    if endings and endings[-1].lower() in PACKED:
        endings = endings[:-1]
    return KINDS.get(endings[-1].lower()) if endings else None


def find_files(paths: Sequence[str | Path], *, option: str = "--data") -> list[Found]:
    """Files named are taken whatever their ending (text, unless it says more); in folders only known endings count.

    The order is that of the names given, then of the file names; hidden files are left out.
    """
    if not paths:
        raise SourceMissing(f"no files were named: give files, folders or patterns with {option}")
    found: list[Found] = []
    for given in paths:
        path = Path(given).expanduser()
        if path.is_dir():
            found += _inside(path, option)
        elif path.is_file():
            found.append(Found(path, kind_of(path) or "text", True, path.name))
        elif any(letter in str(given) for letter in "*?["):
            matches = sorted(Path(m) for m in glob.glob(str(path), recursive=True))
            matches = [Found(m, kind_of(m) or "text", False, m.name) for m in matches if m.is_file()]
            if not matches:
                raise SourceMissing(f"{option} {given}: no file matches the pattern")
            found += matches
        else:
            raise SourceMissing(f"{option} {given}: there is no such file or folder; looked for {path.absolute()}")
    return _told_apart(found)


def _inner(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _told_apart(found: list[Found]) -> list[Found]:
    """Several folders may hold files of one name: these go by their paths from the folder that holds them all."""
    places: dict[str, set[str]] = {}
    for file in found:
        places.setdefault(file.key, set()).add(os.path.abspath(file.path))
    shared = {key: Path(os.path.commonpath(paths)) for key, paths in places.items() if len(paths) > 1}
    return [
        file._replace(key=_inner(Path(os.path.abspath(file.path)), shared[file.key])) if file.key in shared else file
        for file in found
    ]


def _inside(folder: Path, option: str) -> list[Found]:
    visible = []
    for path in folder.rglob("*"):
        inner = path.relative_to(folder).parts
        if not any(part.startswith(".") for part in inner) and path.is_file():
            visible.append(path)
    kinds = [(path, kind_of(path)) for path in sorted(visible)]
    found = [Found(path, kind, False, path.name) for path, kind in kinds if kind is not None]
    if not found:
        others = f"{len(visible)} files with other endings" if visible else "no files"
        raise SourceMissing(
            f"{option} {folder}: {others}; wanted {', '.join(KINDS)}, also packed ({', '.join(PACKED)}). "
            "Name files of another ending one by one or by a pattern"
        )
    return found


def first_of(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of these files that is in the folder, as it is or packed."""
    for name in names:
        for ending in ("", *PACKED):
            path = folder / (name + ending)
            if path.is_file():
                return path
    return None


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked on the fly; damage inside is reported with the name of the file."""
    opener = PACKED.get(path.suffix.lower())
    try:
        with opener(path, "rb") if opener else path.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise BadData(f"{path}: it does not unpack ({error}): it is cut short or damaged; fetch it again") from error
    except OSError as error:
        if opener is bz2.open and error.errno is None:  # how bz2 tells of damage
            raise BadData(f"{path}: it does not unpack ({error}): it is damaged; fetch it again") from error
        raise
