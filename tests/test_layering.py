"""The folders are the architecture: imports point up the list, and `import cosformer` costs torch alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cosformer

ROOT = Path(cosformer.__file__).parent
LAYERS = ["ops", "nn", "models", "rivals", "tasks", "training", "bench", "sweeps", "report", "compare", "cli"]
MAY_IMPORT = {
    "ops": {"torch"},
    "nn": {"torch"},
    "models": {"torch", "transformers", "huggingface_hub", "safetensors", "tokenizers"},
    "rivals": {"torch", "transformers"},
    "tasks": {"torch", "numpy", "tokenizers"},  # datasets, pyarrow and sacrebleu only through tasks/optional.py
    "training": {"torch", "transformers", "accelerate", "safetensors"},
    "bench": {"torch", "matplotlib"},
    "sweeps": {"torch"},
    "report": {"torch"},
    "compare": {"torch"},
    "cli": {"torch", "typer", "rich", "matplotlib"},
}
NEVER = {("tasks", "models"), ("tasks", "rivals"), ("tasks", "nn"), ("tasks", "ops")}  # data knows no model
ANYWHERE = {"version"}
MACHINE = {"cosformer.bench.environment", "cosformer.bench.clock", "cosformer.bench.floor"}
"""What describes and measures the machine: a run is told with it as a benchmark is."""


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            found.append(node.module or "")
    return found


def faults(path: Path, names: list[str]) -> list[str]:
    """What is wrong with these imports in a module at this place."""
    parts = path.relative_to(ROOT).parts
    if len(parts) == 1:  # the package itself may look down; version.py looks nowhere
        return []
    layer, found = parts[0], []
    for name in names:
        top, *rest = name.split(".")
        if top == "cosformer":
            other = rest[0] if rest else ""
            if layer == "training" and name in MACHINE:
                continue
            if other in LAYERS and (LAYERS.index(other) > LAYERS.index(layer) or (layer, other) in NEVER):
                found.append(f"{layer} imports {other}")
            elif other not in LAYERS and other not in ANYWHERE:
                found.append(f"{layer} imports cosformer.{other}")
        elif top == "triton" and parts[:2] == ("ops", "triton"):
            continue  # alone
        elif top not in sys.stdlib_module_names and top not in MAY_IMPORT.get(layer, set()):
            found.append(f"{layer} imports {top}")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_up(path: Path) -> None:
    assert not faults(path, imports(path))


def test_every_folder_has_its_place() -> None:
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in ("__pycache__", "recipes")}
    assert folders
    assert folders <= set(LAYERS)


def test_the_check_sees_a_wrong_import() -> None:
    assert faults(ROOT / "ops" / "x.py", ["cosformer.nn.attention"]) == ["ops imports nn"]
    assert faults(ROOT / "tasks" / "x.py", ["cosformer.models.cache", "transformers"]) == [
        "tasks imports models",
        "tasks imports transformers",
    ]
    assert faults(ROOT / "nn" / "x.py", ["rich"]) == ["nn imports rich"]
    assert faults(ROOT / "training" / "x.py", ["cosformer.bench.environment", "cosformer.tasks"]) == []
    assert faults(ROOT / "training" / "x.py", ["cosformer.bench.report", "rich"]) == [
        "training imports bench",
        "training imports rich",
    ]
    assert faults(ROOT / "ops" / "x.py", ["triton"]) == ["ops imports triton"]
    assert faults(ROOT / "ops" / "triton" / "x.py", ["triton.language"]) == []
    assert faults(ROOT / "cli" / "x.py", ["cosformer.ops.attention", "rich", "json"]) == []


def test_the_reference_imports_no_kernel() -> None:
    seen: set[str] = set()
    queue = ["cosformer.ops.reference"]
    while queue:
        name = queue.pop()
        if name.startswith("cosformer.ops.") and name not in seen:
            seen.add(name)
            queue += imports(ROOT.parent / (name.replace(".", "/") + ".py"))
    assert "cosformer.ops.features" in seen
    assert not [name for name in seen if name.rsplit(".", 1)[-1] in ("backends", "chunked", "launch", "build")]


def test_importing_the_package_is_silent_and_needs_only_torch() -> None:
    program = (
        "import sys, torch; before = set(sys.modules); import cosformer, cosformer.nn; "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'cosformer', 'torch'}), end='')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]"
    assert done.stderr == ""
