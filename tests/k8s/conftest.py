"""No test of the manifests may be skipped where `make test-k8s` runs them, but the image build, which says why."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from k8s.manifests import OVERLAYS, Document, render


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if report.skipped and item.get_closest_marker("k8s") and not item.get_closest_marker("image"):
        report.outcome, report.longrepr = "failed", f"skipped: {report.longrepr}"


@pytest.fixture(params=OVERLAYS)
def documents(request: pytest.FixtureRequest) -> tuple[Document, ...]:
    """Every overlay, rendered."""
    return render(request.param)
