"""Every test of this folder draws the same numbers, whichever ran before."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
