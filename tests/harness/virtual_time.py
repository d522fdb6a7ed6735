"""An event loop whose clock jumps to the next timer whenever nothing is ready: waiting is free, order is fixed."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingToWaitFor(RuntimeError):
    """Every task waits and no timer is set: in real time the test would hang."""


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Advances its loop's clock instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready: list[Any] = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise NothingToWaitFor("every task waits and no timer is set")
        self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s. For one thread: nothing can wake it from outside."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtual(coro: Coroutine[Any, Any, T]) -> T:
    """Runs `coro` to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coro)


def now_ns() -> int:
    """The running loop's clock, for engines that take one."""
    return round(asyncio.get_running_loop().time() * 1e9)
