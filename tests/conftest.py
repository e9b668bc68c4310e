import os
import signal

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: its kernels then run on the CPU

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it puts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

from cosformer.ops.cpu.build import NativeUnavailable, load_library


def _why_not_compiled() -> str | None:
    try:
        load_library()
    except NativeUnavailable as error:
        return str(error)
    return None


_MISSING = _why_not_compiled()
COMPILED = pytest.param("cpu", marks=pytest.mark.skipif(_MISSING is not None, reason=f"no compiled kernel: {_MISSING}"))


@pytest.fixture(params=[COMPILED, "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def compiled() -> None:
    if _MISSING is not None:
        pytest.skip(f"no compiled kernel: {_MISSING}")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def _poisoned():
    """Memory from torch.empty is NaN until written."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)
