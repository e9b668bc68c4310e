"""Devices that are not here, by tensors without values: what has no float64 is asked for none."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cosformer.ops.features import turn


class NoFloat64(TorchDispatchMode):
    """As MPS: no float64 there, not even on the way to or from another device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        seen = [x for x in (*args, out) if isinstance(x, Tensor)]
        there = [x for x in seen if x.device.type == "mps"]
        assert not any(x.dtype == torch.float64 for x in there), func
        if there and len(there) < len(seen) and seen[0].device.type == "mps":  # from there
            assert len({x.dtype for x in seen}) == 1, func
        return out


@pytest.mark.parametrize("steps", ["a number", "by row", "by row on the CPU"])
@pytest.mark.parametrize("compiling", [False, True])
def test_states_turn_without_float64(compiling: bool, steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    with FakeTensorMode():
        sums = torch.empty(3, 2, 2, 5, 6, device="mps")
        place = "cpu" if "CPU" in steps else "mps"
        by = 5 if steps == "a number" else torch.empty(3, dtype=torch.int64, device=place)
        with NoFloat64():
            turned = turn(sums, by, 0.1)
    assert (turned.device.type, turned.dtype, turned.shape) == ("mps", torch.float32, sums.shape)


def test_the_guard_sees_a_conversion_on_the_way() -> None:
    with FakeTensorMode():
        steps = torch.empty(3, dtype=torch.int64, device="mps")
        with pytest.raises(AssertionError), NoFloat64():
            steps.to("cpu", torch.float64)
        with pytest.raises(AssertionError), NoFloat64():
            torch.zeros(3, dtype=torch.float64, device="mps")
