"""Nothing a model does in training looks at a value or reckons on the CPU: on a GPU each look would be a wait.

Tried on the device "meta", whose tensors have no values to look at.
"""

from typing import Any

import pytest
import torch
from small_models import ATTENTIONS, small_model
from torch.utils._python_dispatch import TorchDispatchMode

from cosformer.models import (
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
)
from cosformer.ops.features import turn

KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "causal": (CosformerForCausalLM, {}),
    "masked": (CosformerForMaskedLM, {"causal": False}),
    "classifier": (CosformerForSequenceClassification, {"causal": False, "num_labels": 3}),
    "encoder-decoder": (
        CosformerForConditionalGeneration, {"is_encoder_decoder": True, "decoder_start_token_id": 3},
    ),
}  # fmt: skip


class OnOneDevice(TorchDispatchMode):
    """Refuses an operation that another device has part in."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        results = out if isinstance(out, (tuple, list)) else [out]
        found = {x.device.type for x in (*args, *results) if isinstance(x, torch.Tensor)}
        assert found <= {"meta"}, f"{func} on {found}"
        return out


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_training(kind: str, attention: str, positions: str) -> None:
    cls, options = KINDS[kind]
    model = small_model(cls, attention=ATTENTIONS[attention], positions=positions, **options).to("meta").train()
    ids = torch.zeros(3, 40, dtype=torch.int64, device="meta")
    labels = {"classifier": ids[:, 0], "encoder-decoder": ids[:, :33]}.get(kind, ids)
    with OnOneDevice():
        model(ids, torch.ones_like(ids), labels=labels).loss.backward()


@pytest.mark.parametrize("by_row", [False, True])
def test_the_guard_sees_a_turn_on_the_cpu(by_row: bool) -> None:
    sums = torch.zeros(3, 2, 2, 8, 8, device="meta")
    with OnOneDevice():
        turn(sums, torch.zeros(3, dtype=torch.int64, device="meta") if by_row else 5, 0.1)
    with pytest.raises(AssertionError, match="cpu"), OnOneDevice():
        turn(sums, torch.full((3,) if by_row else (), 5), 0.1)
