"""A Ray cluster to join."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.processes import RayHead


@pytest.fixture(scope="module")
def ray_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """A cluster that was there before the worker: two CPUs, no GPU."""
    with RayHead(tmp_path_factory.mktemp("head")) as head:
        yield head
