"""Memory of this process on a CPU: how much there is, how much a call may take, how much it took."""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

STATUS, REFS, INFO = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")
SHARE = 0.8
"""Of the free memory that a call may take: the machine must outlive it."""


def available() -> int | None:
    """Bytes that can be had here without hurting others; None where the system does not tell."""
    found = [_line(INFO, "MemAvailable")]
    try:  # a container's own limit
        limit = (GROUP / "memory.max").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int((GROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    told = [x for x in found if x is not None]
    return max(0, min(told)) if told else None


def limit(most: int | None) -> None:
    """From now on this process gets `most` bytes more than it has (None: SHARE of what is free), then an error.

    Without it, the system would end a process of its own choice, perhaps another's.
    """
    if not sys.platform.startswith("linux"):
        return
    import resource

    free = available()
    if most is None and free is not None:
        most = int(free * SHARE)
    held = _line(STATUS, "VmSize")
    if most is None or held is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = held + most
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def give_back() -> None:
    """Freed memory goes back to the system, where the C library can do that."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def peak(run: Callable[[], object]) -> int | None:
    """Most bytes resident at once during the call, beyond what was there before; None: this system does not tell."""
    give_back()
    before = _line(STATUS, "VmRSS")
    try:
        REFS.write_text("5")  # the high-water mark starts again
    except OSError:
        run()
        return None
    run()
    most = _line(STATUS, "VmHWM")
    return None if before is None or most is None else max(0, most - before)


def _line(path: Path, name: str) -> int | None:
    """A line of /proc in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
