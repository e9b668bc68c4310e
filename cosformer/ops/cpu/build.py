"""Compiles the CPU kernel on first use with the machine's own C++ compiler and loads it with ctypes.

Nothing is compiled at install time, so the package installs everywhere. The library is kept in a cache folder under a
name made of everything that could change it (source, compiler, flags, processor), and is written whole or not at all.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch  # its OpenMP runtime must be in the process before ours asks for one

SOURCES = ("walk.cpp", "operand.h", "step.h", "tile.h")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-ffp-contract=fast", "-Wno-psabi", "-Wno-ignored-attributes")


class NativeUnavailable(RuntimeError):
    """Why the compiled kernel cannot be had on this machine."""


@dataclass(frozen=True, slots=True)
class Library:
    handle: ctypes.CDLL
    path: Path
    compiler: str
    threaded: bool
    vector_bytes: int

    @property
    def summary(self) -> str:
        threads = f"{torch.get_num_threads()} threads" if self.threaded else "1 thread (no OpenMP)"
        return f"{8 * self.vector_bytes}-bit vectors, {threads}, built by {self.compiler}"


@functools.cache
def load_library() -> Library:
    """The compiled kernel, built if need be. Raises NativeUnavailable with the reason."""
    if os.name != "posix":
        raise NativeUnavailable(f"the compiled kernel is built on Linux and macOS only, this is {platform.system()}")
    compiler = find_compiler()
    version = (_run([compiler, "--version"]).splitlines() or [compiler])[0]
    failures: list[NativeUnavailable] = []
    for tuning in _tunings():
        for threading in (("-fopenmp",), ()):
            flags = (*FLAGS, *tuning, *threading)
            try:
                return _open(_build(compiler, version, flags), version)
            except NativeUnavailable as error:
                failures.append(error)
    raise failures[0]


def find_compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return name
    raise NativeUnavailable("no C++ compiler (looked for $CXX, g++, clang++, c++); install one for the fast CPU kernel")


def cache_folder() -> Path:
    if chosen := os.environ.get("COSFORMER_CACHE"):
        return Path(chosen)
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "cosformer"
    try:
        return Path.home() / ".cache" / "cosformer"
    except RuntimeError as error:  # a user without a home
        raise OSError(str(error)) from error


def _tunings() -> tuple[tuple[str, ...], ...]:
    # vectors as wide as the processor has: compilers hold back 512-bit ones unless asked
    wide = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
    return (("-march=native", *wide), ("-mcpu=native",), ())


def _build(compiler: str, version: str, flags: tuple[str, ...]) -> Path:
    here = Path(__file__).parent
    key = hashlib.sha256()
    for name in SOURCES:
        key.update((here / name).read_bytes())
    # -march=native means something else on the next machine that shares this cache folder
    key.update(repr((version, flags, _target(compiler, flags))).encode())
    name = f"walk-{key.hexdigest()[:16]}.so"
    failures: list[str] = []
    for choose in (cache_folder, lambda: Path(tempfile.gettempdir()) / f"cosformer-{os.getuid()}"):
        try:
            folder = choose()
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.stat().st_uid != os.getuid():  # never load what another user could have put there
                raise PermissionError(f"{folder} belongs to another user")
            path = folder / name
            if not _is_whole(path):
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    built = Path(scratch) / name
                    _run([compiler, *flags, str(here / SOURCES[0]), "-o", str(built)])
                    checksum = built.with_suffix(".sha256")
                    checksum.write_text(hashlib.sha256(built.read_bytes()).hexdigest())
                    checksum.replace(path.with_suffix(".sha256"))
                    built.replace(path)
            return path
        except OSError as error:
            failures.append(str(error))
    raise NativeUnavailable(f"no folder to keep the compiled kernel in ({'; '.join(failures)}); set COSFORMER_CACHE")


def _is_whole(path: Path) -> bool:
    """A library cut short (a full disk, a crash) would kill the process that maps it: it is built again instead."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == path.with_suffix(".sha256").read_text()
    except OSError:
        return False


def _target(compiler: str, flags: tuple[str, ...]) -> str:
    """The macros the compiler defines for these flags: they name every instruction set it may use."""
    machine = [f for f in flags if f.startswith("-m")]
    return _run([compiler, *machine, "-dM", "-E", "-x", "c++", os.devnull])


def _open(path: Path, version: str) -> Library:
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"the compiled kernel does not load: {error}") from error
    handle.cosformer_sizes.restype = ctypes.c_int64
    return Library(handle, path, version, bool(handle.cosformer_has_openmp()), handle.cosformer_sizes(4))


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
        raise NativeUnavailable(f"{command[0]} failed: {first}")
    return done.stdout
