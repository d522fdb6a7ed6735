"""When to leave a failing draft worker alone. Time is an argument, in seconds."""

from __future__ import annotations

_FAILURES_TO_OPEN = 3


class Breaker:
    """Opens after three failures in a row; lets one try through after a pause, which doubles while they fail."""

    def __init__(self, pause_s: float, longest_pause_s: float = 60.0) -> None:
        self._pause_s = pause_s
        self._longest_pause_s = longest_pause_s
        self._num_failures = 0
        self._closed_from = 0.0

    def allows(self, now: float) -> bool:
        """Whether a try is worth its while. One that is let through keeps others out for a pause."""
        if self._num_failures < _FAILURES_TO_OPEN:
            return True
        if now < self._closed_from:
            return False
        self._closed_from = now + self._pause_s
        return True

    def failed(self, now: float) -> None:
        self._num_failures += 1
        excess = min(max(self._num_failures - _FAILURES_TO_OPEN, 0), 10)
        self._closed_from = now + min(self._pause_s * 2**excess, self._longest_pause_s)

    def succeeded(self) -> None:
        self._num_failures = 0
