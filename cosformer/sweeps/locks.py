"""Who is at a queue or a job: a lock on a file, which the system frees when its process dies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

QUEUE = ".lock"


@contextmanager
def only(path: Path) -> Iterator[None]:
    """BlockingIOError where another process has it. Not POSIX: nothing is guarded."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


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
