"""A run folder as `cosformer train` leaves it, made by hand: a tiny model, forty steps, hostile samples."""

import json
import math
from pathlib import Path
from typing import Any

import torch

from cosformer.models import CosformerConfig, CosformerForCausalLM, byte_tokenizer

HOSTILE = '</pre><script>window.broken = 1</script> & "quotes" \x00\x1b[31m\ttab\nüñí ␀'
SAMPLE = {"prompt": "class ", "text": "Finished:\n    pass\n"}
RECIPE = """name = "lm-test"
task = "lm"
about = "A model for <tests> & nothing else."
seed = 0

[data]
source = "stdlib"
valid_split = "valid"
length = 64

[model]
attention = ["cosformer", "softmax"]
hidden_size = 16

[train]
steps = 40
learning_rate = 0.001

[sample]
prompts = ["def "]
"""


def lines() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"kind": "event", "step": 0, "event": "start"}]
    for step in range(2, 41, 2):
        loss = 2 + 3 * math.exp(-step / 10)
        found.append({
            "kind": "train", "step": step, "loss": loss, "learning_rate": 1e-3 * step / 40, "grad_norm": 1 / step,
            "tokens": 1_000 * step, "seconds": step / 4, "tokens_per_second": 4_000.0, "memory_bytes": 5 << 20,
            "share_of_peak": None,
        })  # fmt: skip
        if step % 20 == 0:
            found.append({"kind": "eval", "step": step, "split": "valid", "loss": loss, "bits_per_byte": loss / 0.6931})
            found.append({"kind": "sample", "step": step, "prompt": "def ", "text": HOSTILE})
    return [*found, {"kind": "event", "step": 40, "event": "end"}]


def summary() -> dict[str, Any]:
    split = {"text_sha256": "ab" * 32, "tokens": 9_000, "bytes": 8_900, "documents": 3, "examples": 0}
    return {
        "recipe": "lm-test", "task": "lm", "data": {"name": "stdlib", "splits": {"train": split}, "tokens": 9_000},
        "parameters": 12_345, "steps": 40, "tokens": 40_000, "seconds": 10.0, "tokens_per_second": 4_000.0,
        "share_of_peak": None, "memory_bytes": 5 << 20, "precision": "fp32", "compiled": False, "processes": 1,
        "metrics": {"loss": 2.05, "bits_per_byte": 2.96}, "interrupted": False,
        "environment": {
            "device": "a processor, 2 threads", "date": "2026-11-16", "commit": "0123456789ab",
            "versions": {"cosformer": "0.1.0", "torch": "2.13.0"}, "command": "cosformer train lm-test",
        },
    }  # fmt: skip


def demo() -> dict[str, Any]:
    def times(ours: float, softmax: float) -> dict[str, Any]:
        return {"cosformer, causal": {"ms": ours}, "softmax (SDPA), causal": {"ms": softmax}}

    rows = [
        {"length": n, "forward_backward_ms": times(n / 100, n * n / 5e4), "speedup_forward_backward": n / 500}
        for n in (512, 1_024, 2_048)
    ]
    cells = {
        name: {"parameters": 1, "eager": {str(n): {"ms_per_token": 1 + n * by, "cache_bytes": 1_000 + int(1e3 * n * by)}
                                          for n in (256, 4_096)}}
        for name, by in (("cosformer", 0.0), ("softmax", 0.01))
    }  # fmt: skip
    held = {
        "split": "test", "bytes": 1_000_000, "how": "All of it.", "text": "def main():\n    print('Hello')\n",
        "bits_per_byte": {"this model": 2.9, "6-gram": 2.3, "gzip": 2.25},
    }  # fmt: skip
    return {"device": "a processor", "rows": rows, "generate": {"models": cells}, "held_out": held, "samples": [SAMPLE]}


def make_run(folder: Path, *, finished: bool = True, with_demo: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines()))
    if finished:
        torch.manual_seed(0)
        tokenizer = byte_tokenizer()
        config = CosformerConfig(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, horizon=128,
            attention=["cosformer", "softmax"], initializer_range=0.5,
        )  # fmt: skip
        CosformerForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "run.json").write_text(json.dumps(summary()))
    if with_demo:
        (folder / "demo.json").write_text(json.dumps(demo()))
    return folder
