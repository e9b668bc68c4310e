"""Killed at any moment, preparing goes on and ends with the same bytes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cosformer.tasks import TextFiles, encoder_of, prepare, word_tokenizer
from cosformer.tasks.pieces import Piece, Place

# Without the top of the package, which imports torch: the moments of the kill should fall into the work
PROGRAM = """
import sys, types
from pathlib import Path
root = Path({root!r})
for name, path in (("cosformer", root), ("cosformer.tasks", root / "tasks")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(path)]
from cosformer.tasks.encoders import encoder_of
from cosformer.tasks.pieces import Piece, Place
from cosformer.tasks.shards.prepare import prepare
from cosformer.tasks.sources.own_text import TextFiles
from cosformer.tasks.word_level import word_tokenizer
corpus, out, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
encoder = encoder_of(word_tokenizer([Piece(corpus.read_bytes()[:10_000], Place("x", 1))]))
print("ready", flush=True)
source = TextFiles([corpus], document="line", held_out=(0, 0))
prepare(source, "train", encoder, out, shard_bytes=20_000, workers=workers)
print("done", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills processes by signal")
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_random_moments(tmp_path: Path, workers: int) -> None:
    import cosformer

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"line {i % 977} of the text {i}\n" for i in range(40_000)))
    encoder = encoder_of(word_tokenizer([Piece(corpus.read_bytes()[:10_000], Place("x", 1))]))
    source = TextFiles([corpus], document="line", held_out=(0, 0))
    prepare(source, "train", encoder, tmp_path / "whole", shard_bytes=20_000, workers=0)
    program = PROGRAM.format(root=str(Path(cosformer.__file__).parent))
    command = [sys.executable, "-c", program, str(corpus), str(tmp_path / "killed"), str(workers)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    chance, folder, kills, partly = random.Random(workers), tmp_path / "killed" / "train", 0, 0
    while kills < 8:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.0, 0.3 if workers else 0.1))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read()
        if rest == "done\n":
            break
        kills += 1
        partly += any(folder.glob("*.shard")) and not (folder / "manifest.json").exists()
    assert kills > 0
    assert partly > 0  # at least once in the middle of the work
    shards = prepare(source, "train", encoder, tmp_path / "killed", shard_bytes=20_000, workers=0)
    assert len(shards.manifest.shards) > 30
    names = sorted(path.name for path in (tmp_path / "whole" / "train").iterdir())
    deadline = time.monotonic() + 10  # a worker whose parent was killed may still be at its last shard
    while sorted(path.name for path in folder.iterdir()) != names and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "whole" / "train" / name).read_bytes(), name


@pytest.mark.skipif(os.name != "posix", reason="kills processes by signal")
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    import cosformer

    program = PROGRAM.format(root=str(Path(cosformer.__file__).parent))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("some words in a line\n" * 200_000)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program, str(corpus), str(tmp_path / "out"), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        children: list[int] = []
        while not children and process.poll() is None:
            children = [int(pid) for pid in _children(process.pid)]
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert children
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in children)


def _children(pid: int) -> list[str]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    if not listing.parent.parent.exists():
        pytest.skip("needs /proc to find the workers")
    return [child for task in listing.parent.parent.iterdir() for child in (task / "children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
