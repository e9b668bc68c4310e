"""The compiled kernel: built once, kept, rebuilt when anything changes; without a compiler, said plainly."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops import backends
from cosformer.ops.cpu import build, launch


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty cache folder and a loader that has not run."""
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "cache"))
    for cache in (build.load_library, backends._auto, launch._function):
        cache.cache_clear()
    yield tmp_path / "cache"
    for cache in (build.load_library, backends._auto, launch._function):
        cache.cache_clear()


def test_structures_agree_with_the_kernel(compiled: None) -> None:
    sizes = build.load_library().handle.cosformer_sizes
    for i, mirror in enumerate((launch._Operand, launch._Walk, launch._Step, launch._RowGradients)):
        assert sizes(i) == ctypes.sizeof(mirror)


def test_without_a_compiler_auto_takes_torch_and_says_why(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    choice = backends.choose_backend("auto", torch.device("cpu"))
    assert choice.name == "torch"
    assert "no C++ compiler" in choice.why
    x = torch.randn(1, 1, 9, 4)
    assert cosformer_attention(x, x, x).isfinite().all()
    with pytest.raises(RuntimeError, match="backend='cpu' cannot run here: no C\\+\\+ compiler"):
        cosformer_attention(x, x, x, backend="cpu")


def test_another_system_takes_torch_and_says_why(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.os, "name", "nt")
    monkeypatch.setattr(build.platform, "system", lambda: "Windows")
    choice = backends.choose_backend("auto", torch.device("cpu"))
    monkeypatch.undo()
    assert choice.name == "torch"
    assert "this is Windows" in choice.why


def test_a_compiler_that_fails_is_quoted(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken++"
    broken.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo broken 1.0 && exit 0\necho 'error: no such machine' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    choice = backends.choose_backend("auto", torch.device("cpu"))
    assert choice.name == "torch"
    assert "error: no such machine" in choice.why
    assert not list(fresh.glob("*.so"))


def test_built_once_and_kept(compiled: None, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.load_library().path
    assert path.parent == fresh
    assert sorted(p.suffix for p in fresh.iterdir()) == [".sha256", ".so"]  # no scratch left behind
    build.load_library.cache_clear()
    commands: list[list[str]] = []
    run = build._run
    monkeypatch.setattr(build, "_run", lambda command: commands.append(command) or run(command))
    assert build.load_library().path == path
    assert not [c for c in commands if "-o" in c]


def test_a_library_cut_short_is_built_again(compiled: None, fresh: Path) -> None:
    path = build.load_library().path
    whole = path.read_bytes()
    build.load_library.cache_clear()
    path.unlink()
    path.write_bytes(whole[: len(whole) // 2])
    assert build.load_library().path.read_bytes() == whole


def test_a_user_without_a_home_is_no_obstacle(
    compiled: None, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("COSFORMER_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build.Path, "home", homeless)
    assert build.load_library().path.parent.parent == tmp_path


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: None
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    assert build.load_library().path.parent.parent == tmp_path


def test_no_folder_at_all_is_said(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: None) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    with pytest.raises(build.NativeUnavailable, match="set COSFORMER_CACHE"):
        build.load_library()


def test_sources_travel_with_the_package() -> None:
    for name in build.SOURCES:
        assert (Path(build.__file__).parent / name).exists()


def test_bounds_hold_under_the_sanitizer(compiled: None, tmp_path: Path) -> None:
    """The kernel over odd shapes, compiled to stop at any access outside its buffers or undefined step."""
    compiler = build.find_compiler()
    here = Path(build.__file__).parent
    library = tmp_path / "checked.so"
    flags = [
        "-std=c++17",
        "-O1",
        "-g",
        "-fPIC",
        "-shared",
        "-march=native",
        "-fsanitize=address,undefined",
        "-Wno-psabi",
    ]
    made = subprocess.run(
        [compiler, *flags, "-fno-sanitize=alignment", str(here / "walk.cpp"), "-o", str(library)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    if made.returncode or not Path(runtime.stdout.strip()).is_absolute():
        pytest.skip(f"no address sanitizer for {compiler}: {made.stderr.strip()[-200:]}")
    program = f"""
import ctypes, torch
from cosformer.ops.cpu import build, launch
handle = ctypes.CDLL({str(library)!r})
handle.cosformer_sizes.restype = ctypes.c_int64
build.load_library = launch.load_library = lambda: build.Library(handle, None, "", False, 64)
from cosformer import AttentionState, attention_step, cosformer_attention
from cosformer.ops import backends
backends.load_library = launch.load_library
for t, s, k, v, h in ((1, 1, 1, 1, 1), (33, 70, 5, 130, 2), (40, 40, 64, 65, 2), (7, 7, 130, 3, 4)):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for causal in (True, False):
            q = torch.randn(2, h, t, k, dtype=dtype, requires_grad=True)
            x, y = (torch.randn(2, 1, s, w, dtype=dtype, requires_grad=True) for w in (k, v))
            o, state = cosformer_attention(q, x, y, causal=causal, horizon=200, return_state=True, backend="cpu")
            (o.float().sum() + state.sums.float().sum()).backward()
            state = state.detach()
            attention_step(*(z.detach()[:, :, :1] for z in (q, x, y)), state, backend="cpu")
print("clean", end="")
"""
    environment = {
        "LD_PRELOAD": runtime.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(here.parents[2]),
    }  # fmt: skip
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "clean", done.stderr[-3000:]
