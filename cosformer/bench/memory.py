"""Peak resident memory of one causal forward, measured in a process of its own."""

import json
import subprocess
import sys

from cosformer.ops.cost import bytes_moved

# Inputs are written (not merely reserved) before the baseline is read, so that the difference is the operator's own.
_PROGRAM = """
import json, pathlib, resource, sys
import torch
from cosformer import cosformer_attention
heads, length, width = (int(x) for x in sys.argv[1:4])
warm = torch.ones(1, heads, 64, width)
cosformer_attention(warm, warm, warm, causal=True)
def peak():
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the process that started this one
        return next(int(x.split()[1]) * 1024 for x in status.read_text().splitlines() if x.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
q, k, v = (torch.empty(1, heads, length, width).uniform_() for _ in range(3))
with torch.no_grad():
    o = cosformer_attention(q, k, v, causal=True)
assert o[:, :, -1].isfinite().all()
print(json.dumps({"baseline": before, "peak": peak()}))
"""


def peak_memory(*, heads: int = 8, length: int = 1_048_576, width: int = 64) -> dict[str, float]:
    """Bytes resident beyond the warmed-up process, and as a multiple of q, k, v and o together (fp32)."""
    arguments = [sys.executable, "-c", _PROGRAM, str(heads), str(length), str(width)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the memory run failed: {done.stderr.strip().splitlines()[-1:]}; it needs about 10 GB free")
    seen = json.loads(done.stdout)
    needed = bytes_moved(1, heads, length, width, width, 4)
    used = seen["peak"] - seen["baseline"]
    return {"length": length, "tensors_bytes": needed, "resident_bytes": used, "ratio": used / needed}
