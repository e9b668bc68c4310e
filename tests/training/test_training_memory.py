"""Training takes memory that does not grow with the text: no list of windows, no order, no shard is ever whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_data import tiny

MIB = 1 << 20
# Forks of one process: each tells its own peak, and torch is imported once
PROGRAM = """
import json, os, sys
from functools import partial
from pathlib import Path
import torch
torch.set_num_threads(1)
from cosformer.tasks import prepare
from cosformer.training import data, load_recipe, train

data.prepare = partial(prepare, shard_bytes=1 << 20)
recipe, folder = sys.argv[1:3]
for size in map(int, sys.argv[3:]):
    text = Path(folder, f"{size}.txt")
    line = b"a line of some sixty bytes, more or less the same as others\\n" * 1000
    with text.open("wb") as file:
        while file.tell() < size:
            file.write(line)
    pid = os.fork()
    if pid == 0:
        train(load_recipe(recipe, f"data.path={text}"), Path(folder, f"run-{size}"), device="cpu")
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10
        print(json.dumps([size, peak]), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmHWM is read from /proc")
def test_the_peak_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Eight times the text, four million windows instead of half a million: a list of them would show."""
    small = ("data.length=16", "train.steps=40", "sample.prompts=[]", "eval.every=40", "train.log_every=40")
    recipe = tiny("lm-text", tmp_path / "data", *small)
    (tmp_path / "mine.toml").write_text(recipe.toml())
    sizes = [8 * MIB, 64 * MIB]
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "mine.toml"), str(tmp_path), *map(str, sizes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    peaks = dict(json.loads(line) for line in done.stdout.splitlines())
    for size in sizes:
        shards = json.loads((tmp_path / f"run-{size}" / "run.json").read_text())["data"]["splits"]["train"]
        assert shards["bytes"] > 0.85 * size
    # 16 shards of 2 MiB are mapped at most, whatever their number
    assert peaks[sizes[1]] - peaks[sizes[0]] < 40 * MIB
