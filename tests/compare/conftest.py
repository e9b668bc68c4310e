"""The attentions of odd_attentions.py are registered for these tests alone; the commit stays the same throughout."""

from collections.abc import Iterator
from pathlib import Path

import odd_attentions
import pytest

from cosformer.models import KINDS, register_attention


@pytest.fixture(scope="module", autouse=True)
def _odd_attentions() -> Iterator[None]:
    for name, kind in odd_attentions.KINDS.items():
        register_attention(name, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for processes that measure
        patch.setenv("COSFORMER_COMMIT", "tested")  # a sweep goes on at the same commit only
        yield
    for name in odd_attentions.KINDS:
        KINDS.pop(name, None)
