"""Common to all tests: this folder is on the path, so that `harness` can be imported, and torch keeps to one thread.

What `make test-cluster` runs may not be skipped.
"""

from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if report.skipped and any(item.get_closest_marker(name) for name in ("ray", "slow")):
        report.outcome, report.longrepr = "failed", f"skipped: {report.longrepr}"


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Matrices here are too small to share out, and two threads per process are all there are."""
    import torch

    torch.set_num_threads(1)
