"""Common to all tests: this folder is on the path, so that `harness` can be imported, and torch keeps to one thread."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Matrices here are too small to share out, and two threads per process are all there are."""
    import torch

    torch.set_num_threads(1)
