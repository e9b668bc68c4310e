"""The README is true: its snippets run, its table is the result file's, its links lead somewhere."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from made_outcomes import done

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_snippets_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)


def readme_table():
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "docs" / "readme_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_the_result_files() -> None:
    module = readme_table()
    assert module.rewrite(README) == README
    assert module.rewrite(README.replace("**2.", "**9.")) == README
    assert README.count("<!-- table: ") == 5


@pytest.mark.parametrize("name", readme_table().PAGES)
def test_tables_of_pages_are_the_result_files(name: str) -> None:
    module, text = readme_table(), (ROOT / name).read_text()
    assert module.rewrite(text) == text
    assert module.rewrite(text.replace("**1.", "**9.").replace("| 2.", "| 3.")) == text


def cell(ms: float, floor: float, extra: float) -> dict:
    return {"ms": ms, "p20": ms, "p80": ms, "times_floor": ms / floor, "peak_mib": 9.0, "extra_percent": extra}


GPU = {
    "benchmark": "attention on cuda",
    "device": "NVIDIA H200",
    "settings": {"tokens": 131_072, "heads": 16, "width": 64, "dtype": "bf16"},
    "rows": [
        {
            "length": length,
            "floor_ms": {"forward": 0.25, "forward_backward": 0.75},
            "forward": {"cosformer, causal": cell(0.4, 0.25, 3.2), "softmax, SDPA flash, causal": soft},
            "forward_backward": {"cosformer, causal": cell(1.5, 0.75, -0.1), "softmax, SDPA flash, causal": soft},
        }
        for length, soft in ((1_024, cell(1_234.5, 0.25, 0.4)), (65_536, {"reason": "out of memory"}))
    ],
}
TABLE = """\
| ms, forward / forward + backward (× the floor) | T = 1,024 | T = 65,536 | memory beyond the results, forward / forward + backward |
|---|---:|---:|---:|
| the floor: bytes over copy bandwidth | 0.25 / 0.75 | 0.25 / 0.75 |  |
| **cosformer, causal** | **0.40** (1.6×) / **1.50** (2.0×) | **0.40** (1.6×) / **1.50** (2.0×) | 3% / 0% |
| softmax, SDPA flash, causal | 1,234.5 / 1,234.5 | out of memory / out of memory | 0% / 0% |
"""  # noqa: E501


def test_a_gpu_table_is_made_whole(tmp_path: Path) -> None:
    module = readme_table()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "attention-cuda_x.json").write_text(json.dumps(GPU))
    marker = "<!-- table: results/attention-cuda_x.json -->\n"
    for before in ("", "| old | heading |\n|---|---|\n| 1 | 2 |\n", TABLE):
        assert module.rewrite(f"words\n\n{before}{marker}\nmore\n", tmp_path) == f"words\n\n{TABLE}{marker}\nmore\n"


QUEUE = {
    "benchmark": "queue", "settings": {"parallel": 6, "groups": ["listops"], "variants": ["cosformer", "bigbird"]},
    "cells": [
        {"group": "listops", "variant": "cosformer", "seed": 0, **done(value=0.379)},
        {"group": "listops", "variant": "bigbird", "seed": 0, "state": "skipped", "why": "refused: a|b"},
    ],
}  # fmt: skip
ARENA = """\
| steps/s with up to 5 other runs beside | listops (test accuracy) |
|---|---:|
| cosformer | 37.9% (30.0–50.0); 2.0 steps/s, 1 MiB |
| bigbird | skipped: refused: a\\|b |
"""


def test_a_table_of_a_queue_is_made_whole(tmp_path: Path) -> None:
    module = readme_table()
    (tmp_path / "lra.json").write_text(json.dumps(QUEUE))
    marker = "<!-- table: lra.json -->\n"
    for before in ("", ARENA):
        assert module.rewrite(f"words\n\n{before}{marker}\nmore\n", tmp_path) == f"words\n\n{ARENA}{marker}\nmore\n"


def test_tasks_of_several_files_are_one_table(tmp_path: Path) -> None:
    module = readme_table()
    for name, group, device in (("a.json", "listops", "one CPU"), ("b.json", "text", "one GPU")):
        cell = {"group": group, "variant": "cosformer", "seed": 0, **done(value=0.379), "device": device}
        (tmp_path / name).write_text(json.dumps({**QUEUE, "cells": [cell]}))
    (heading, _, row, _) = module.rewrite("<!-- table: a.json,b.json -->\n", tmp_path).splitlines()
    said, *groups = heading.strip("| ").split(" | ")
    assert said == "steps/s with up to 5 other runs beside; listops on one CPU; text on one GPU"
    assert groups == ["listops (test accuracy)", "text (test accuracy)"]
    assert row.count("37.9%") == 2


def test_the_gpu_plot_comes_from_the_same_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    module = readme_table()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "attention-cuda_x.json").write_text(json.dumps(GPU))
    text = "<!-- table: results/attention-cuda_x.json -->\n"
    assert module.draw(text, "cpu", tmp_path) == []
    (path,) = module.draw(text, "cuda", tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")]
    assert links
    assert all((ROOT / link).exists() for link in links)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert named == {"demo", "test"}
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in named)
