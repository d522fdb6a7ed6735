"""A timer beside a step: what hangs inside torch cannot notice that it hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchdog:
    """Calls `on_timeout` on a thread of its own once something guarded has taken more than `limit_s`."""

    def __init__(self, limit_s: float, on_timeout: Callable[[str], object]) -> None:
        self._limit_s = limit_s
        self._on_timeout = on_timeout
        self._since: float | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """What is inside must end in time. One at a time."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._limit_s / 10):
            since = self._since
            if since is not None and time.monotonic() - since > self._limit_s:
                self._on_timeout(f"a step took more than {self._limit_s:g} s")
                return
