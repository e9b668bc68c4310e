"""Files that are whole or not there: a temporary name, fsync, rename."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp"


def write_atomically(path: Path, parts: Iterable[bytes | memoryview | Any]) -> None:
    """Writes to a name of this process's own beside `path`, makes it durable, then renames."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in it durable, where the system has that."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
