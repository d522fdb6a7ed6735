"""Waiting in real time: by polling with a deadline, never by a guess of how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def assert_eventually(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Polls until `condition()` is true; fails with its last value after `within_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not (value := condition()):
        assert loop.time() < deadline, f"still {value!r} after {within_s} s"
        await asyncio.sleep(0.005)
