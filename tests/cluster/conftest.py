"""A Ray cluster to join, and the rule that no test of a group may be skipped."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from cluster.processes import RayHead


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if report.skipped and item.get_closest_marker("ray"):
        report.outcome, report.longrepr = "failed", f"skipped: {report.longrepr}"


@pytest.fixture(scope="module")
def ray_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """A cluster that was there before the worker: two CPUs, no GPU."""
    with RayHead(tmp_path_factory.mktemp("head")) as head:
        yield head
