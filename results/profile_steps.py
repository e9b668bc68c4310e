"""Which kernels the steps of a recipe go to: `python results/profile_steps.py FILE.json RECIPE [FIELD=VALUE …]`.

Trains as `cosformer train` does (so also with train.compile=graphs), for 60 steps of which the last 20 are profiled,
and prints the longest kernels. No result that counts: profiled steps are slower.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from cosformer.bench.environment import provenance
from cosformer.bench.kernel_times import KernelTimes
from cosformer.bench.report import write_json
from cosformer.training import Watch, load_recipe, train

FIRST, LAST = 40, 60
SHOWN = 30


class Profiled(Watch):
    """Looks on from one line of the log to the next."""

    def __init__(self, device: torch.device) -> None:
        self.times, self.rows = KernelTimes(device), []

    def line(self, line: dict[str, Any]) -> None:
        if line["kind"] == "train" and line["step"] == FIRST:
            self.times.start()
        elif line["kind"] == "train" and line["step"] == LAST:
            self.rows = self.times.stop(LAST - FIRST)


def main(file: Path, recipe: str, *fields: str) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cadence = (f"train.steps={LAST}", f"train.log_every={LAST - FIRST}", f"train.save_every={LAST}")
    wanted = load_recipe(recipe, *fields, *cadence, f"eval.every={LAST}", "eval.batches=1", "eval.keep=last")
    watch = Profiled(device)
    with tempfile.TemporaryDirectory() as folder:
        train(wanted, Path(folder) / "run", cache=Path("runs/profile-cache"), device=device.type, watch=watch)
    total = sum(row["ms"] for row in watch.rows)
    print(f"{recipe}: {total:.3f} ms in {sum(row['launches'] for row in watch.rows):.0f} kernels of a step")
    for row in watch.rows[:SHOWN]:
        print(f"{row['ms']:8.3f} ms  {row['launches']:5.1f}  {row['name'][:110]}")
    write_json(file, {
        "benchmark": "kernels of a step", **provenance(str(device)), "recipe": recipe, "fields": list(fields),
        "ms": total, "kernels": watch.rows,
    })  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])
