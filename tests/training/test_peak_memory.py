"""Peak memory on a CPU: what came before the first step does not count."""

from pathlib import Path

import pytest
import torch

from cosformer.training.recorder import memory_bytes, restart_peak

MIB = 1 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system keeps one mark for a process's life")
def test_a_peak_that_is_over_is_forgotten() -> None:
    cpu = torch.device("cpu")
    restart_peak()
    before = memory_bytes(cpu)
    torch.ones(64 * MIB // 4)
    assert memory_bytes(cpu) - before > 60 * MIB  # it was there, and is gone
    restart_peak()
    assert memory_bytes(cpu) - before < 30 * MIB
