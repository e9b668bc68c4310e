"""lm-eval on a task file of our own: its log-likelihoods are the model's. Needs pip install cosformer[eval]."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_pipelines import saved

from cosformer.models import CosformerForCausalLM

pytest.importorskip("lm_eval", reason="pip install cosformer[eval]")
pytest.importorskip("datasets", reason="pip install cosformer[eval]")

TASK = """\
task: local_choice
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
target_delimiter: " "
metric_list:
  - metric: acc
"""


@pytest.mark.filterwarnings("default")  # lm-eval, datasets and what they import warn about each other
def test_multiple_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import lm_eval
    from lm_eval.tasks import TaskManager

    (tmp_path / "model").mkdir()
    model = saved(CosformerForCausalLM, tmp_path / "model")
    rows = [
        {"text": f"w{i} w{i + 3} w{2 * i}", "choices": [f"w{i + 9} w4", f"w{i}"], "label": i % 2} for i in range(12)
    ]
    (tmp_path / "rows.json").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "task.yaml").write_text(TASK.format(data=tmp_path / "rows.json"))
    out: Any = lm_eval.simple_evaluate(
        model="hf", model_args={"pretrained": str(tmp_path / "model"), "device": "cpu", "dtype": "float32"},
        tasks=["local_choice"], task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        batch_size=4, bootstrap_iters=0, log_samples=True,
    )  # fmt: skip
    right = 0
    for sample, row in zip(out["samples"]["local_choice"], rows, strict=True):
        want = [likelihood(model, row["text"], choice) for choice in row["choices"]]
        got = [float(response[0]) for response in sample["filtered_resps"]]
        assert got == pytest.approx(want, abs=1e-3)
        right += max(range(2), key=want.__getitem__) == row["label"]
    assert out["results"]["local_choice"]["acc,none"] == pytest.approx(right / 12)


@torch.no_grad()
def likelihood(model: Any, text: str, choice: str) -> float:
    """log P(choice | text)."""
    before, after = ([int(word[1:]) for word in part.split()] for part in (text, choice))
    logs = model(torch.tensor([before + after])).logits[0].log_softmax(-1)
    return sum(logs[len(before) + i - 1, token].item() for i, token in enumerate(after))
