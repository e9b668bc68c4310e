"""Compiles the Hopper kernels for their chip, which needs no such chip, and prints what they use as JSON.

A program of its own: the tests interpret Triton, and one process does either.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from cosformer.ops.triton import hopper_kernels as narrow_kernels
from cosformer.ops.triton import hopper_wide_kernels as wide_kernels
from cosformer.ops.triton import hopper_wide_walk as walk_kernels

PLAIN = {"MAP": "relu", "PACKED": False, "MASKED": False, "CAUSAL": True, "NORMED": True}
CASES = {
    "plain": PLAIN,
    "odd": PLAIN | {"MAP": "elu1", "PACKED": True, "MASKED": True},
    "full": PLAIN | {"CAUSAL": False},
}
WALK = {"GROUP": 2, "DIVIDED": True, "STATE_IN": True, "STATE_OUT": True}
KERNELS = {
    "sum_kernel": {"QUERIES": True, "SCALED": True},
    "forward_kernel": WALK,
    "backward_q_kernel": {"GROUP": 2, "STATE_IN": True},
    "backward_kv_kernel": WALK,
    "wide_sum_kernel": {"QUERIES": True, "SCALED": True},
    "values_walk": WALK,
    "features_walk": {"GROUP": 2, "STATE_IN": True},
    "keys_walk": WALK,
    "values_kernel": {"GROUP": 2, "DIVIDED": True, "REVERSE": False},
    "values_kernel back": {"GROUP": 2, "DIVIDED": False, "REVERSE": True},
    "features_kernel": {"GROUP": 2, "DIVIDED": True, "REVERSE": False},
    "features_kernel back": {"GROUP": 2, "DIVIDED": True, "REVERSE": True},
}
FULL_ALONE = ("values_kernel", "features_kernel")
ROWS = "tensordesc<bf16[1,1,64,{}],NVMMASharedLayout(128, 16, rank=4)>"
POINTERS = {"p_mask": "*u8"} | dict.fromkeys(("p_cu_q", "p_cu_k", "p_slots"), "*i32")
POINTERS |= dict.fromkeys(("p_o", "p_dq", "p_dk", "p_dv", "p_dx"), "*bf16")


def compiled(name: str, case: str):
    """Heads as wide as the kernel takes, or odd ones."""
    function = name.split()[0]
    (home,) = (x for x in (narrow_kernels, wide_kernels, walk_kernels) if hasattr(x, function))
    wide = home is not narrow_kernels
    kernel, width = getattr(home, function), 128 if wide else 64
    flags = {"K": width, "V": width} if case != "odd" else {"K": width - 40, "V": width - 24}
    flags |= CASES[case] | KERNELS[name]
    if "BY_HAND" in kernel.arg_names:
        flags["BY_HAND"] = flags["PACKED"]

    def kind(name: str) -> str:
        if name in flags:
            return "constexpr"
        if name.startswith("d_"):
            return ROWS.format(width)
        if name.startswith("p_"):
            return POINTERS.get(name, "*fp32")
        return "fp32" if name in ("theta", "eps") else "i32"

    flags = {name: value for name, value in flags.items() if name in kernel.arg_names}
    signature = {name: kind(name) for name in kernel.arg_names}
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if signature[name][0] == "*"
    }
    source = GluonASTSource(fn=kernel, signature=signature, constexprs=flags, attrs=attributes)
    options = {"num_warps": 8 if wide else 4, "maxnreg": wide_kernels.REGISTERS.get(function)}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def cases(name: str) -> list[str]:
    """A walk is causal; its counterpart for full attention is not."""
    if "walk" in name:
        return ["plain", "odd"]
    return ["full"] if name.startswith(FULL_ALONE) else list(CASES)


def usage(made) -> dict[str, int]:
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(made.asm["cubin"])
        command = [tools / "cuobjdump", "-res-usage", "-sass", path]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", report).groups()
    products, waits = report.count("HGMMA."), report.count("WARPGROUP.DEPBAR")
    return {
        "shared": made.metadata.shared, "threads": 32 * made.metadata.num_warps, "registers": int(registers),
        "spilled": int(stack), "products": products, "waits": waits,
    }  # fmt: skip


if __name__ == "__main__":
    found = {
        f"{name} {case}": usage(compiled(name, case)) for name in KERNELS for case in cases(name)
    }  # fmt: skip
    json.dump(found, sys.stdout)
