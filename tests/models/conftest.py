from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Small models gain nothing from threads, and threads of several test processes wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_configure(config: pytest.Config) -> None:
    """Marks of transformers' own suite (test_library_suite.py)."""
    names = (
        "accelerate_tests flash_attn_test flash_attn_3_test flash_attn_4_test torch_compile_test torch_export_test slow"
    )
    for name in f"{names} is_training_test is_tensor_parallel_test is_flaky generate".split():
        config.addinivalue_line("markers", f"{name}: of transformers")
