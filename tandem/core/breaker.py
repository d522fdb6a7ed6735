"""When to leave a failing worker alone: a circuit breaker. Time is an argument, in seconds.

closed      calls go through; three failures in a row open it
open        nobody tries; after a pause it is half-open
half-open   one try goes through: its success closes it, its failure opens it for twice the pause before
"""

from __future__ import annotations

_FAILURES_TO_OPEN = 3


class Breaker:
    """Closed at first. What ends while it is open began before: it says nothing new."""

    def __init__(self, pause_s: float, longest_pause_s: float = 60.0) -> None:
        self._first_pause_s = self._pause_s = pause_s
        self._longest_pause_s = max(pause_s, longest_pause_s)
        self._num_failures = 0
        self._half_open_from: float | None = None  # None: closed
        self._tries = False  # half-open, and its one try is under way

    def allows(self, now: float) -> bool:
        """Whether a call is worth its while."""
        return self._half_open_from is None or now >= self._half_open_from

    def trying(self, now: float) -> None:
        """A call begins that was allowed. A try keeps others out for a pause, in which its outcome should be told."""
        if self._half_open_from is not None:
            self._tries, self._half_open_from = True, now + self._pause_s

    def failed(self, now: float) -> None:
        """A call failed."""
        self._num_failures += 1
        if self._tries:
            self._open(now, min(2 * self._pause_s, self._longest_pause_s))
        elif self._half_open_from is None and self._num_failures >= _FAILURES_TO_OPEN:
            self._open(now, self._first_pause_s)

    def succeeded(self) -> None:
        """A call had a good answer."""
        self._num_failures, self._half_open_from, self._tries = 0, None, False

    def _open(self, now: float, pause_s: float) -> None:
        self._pause_s, self._half_open_from, self._tries = pause_s, now + pause_s, False
