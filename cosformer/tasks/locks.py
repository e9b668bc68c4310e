"""Who is at a queue, a job or a run: a lock on a file or folder, which the system frees when its process dies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_held: set[int] = set()


@contextmanager
def only(path: Path) -> Iterator[None]:
    """BlockingIOError where another process has it; a file is made, a folder must be there. Not POSIX: no guard."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT, 0o666)
    _held.add(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        if file in _held:  # not of a parent
            _held.remove(file)
            os.close(file)


def held(path: Path) -> bool:
    """Whether a process has it now; where the system does not tell, True."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _let_go() -> None:
    """A forked child (a reader of data) shares the open file, and with it the lock: it would outlive its owner."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
