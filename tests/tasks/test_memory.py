"""Preparing and reading take memory that does not grow with the text."""

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
PROGRAM = """
import json, sys
from pathlib import Path
from torch.utils.data import DataLoader
from cosformer.tasks import ByteEncoder, PadCollator, ResumableBatches, TextFiles, Windows, encoder_of, prepare

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10

path, out, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
line = b"a line of some sixty bytes, more or less the same as others\\n" * 100
with open(path, "wb") as file:
    while file.tell() < size:
        file.write(line)
before = peak()
shards = prepare(TextFiles([path], held_out=(0, 0)), "train", ByteEncoder(), out)
prepared = peak()
windows = Windows(shards, 2048)
sampler = ResumableBatches(len(windows), 64)
count = 0
for batch in DataLoader(windows, batch_sampler=sampler, collate_fn=PadCollator(pad=0)):
    count += batch["input_ids"].numel()
    if sampler.batch == 300:
        break
print(json.dumps([before, prepared, peak(), count, len(shards.manifest.shards)]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmHWM is read from /proc")
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    import json

    size = 320 * MIB
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "text.txt"), str(tmp_path / "out"), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, prepared, read, count, shards = json.loads(done.stdout)
    (tmp_path / "text.txt").unlink()
    assert shards > 16
    assert count == 300 * 64 * 2048  # from all over the text
    # 320 MiB of text make 640 MiB of shards. Preparing holds a few shards of 16 MiB, reading maps 16 shards of 32 MiB
    assert prepared - before < 250
    assert read - before < 250 + 16 * 32 + 50
    assert read < 2048
