"""When to try again, and for how long."""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass

from tandem.client.errors import ClientError, DeadlineExceeded, Overloaded, Unavailable


@dataclass(frozen=True, slots=True)
class Retry:
    """How often to try again, and after what pause. The count begins anew whenever tokens have come."""

    max_attempts: int = 5  # over all addresses; 1: never again
    first_pause_s: float = 0.1  # once every address has failed; doubles from round to round
    longest_pause_s: float = 2.0
    longest_overload_s: float = 30.0  # an overload that asks for a longer pause is raised

    def pause_s(self, error: ClientError, num_failures: int, num_addresses: int) -> float | None:
        """Before the next attempt; None: there must be none."""
        if num_failures >= self.max_attempts:
            return None
        if isinstance(error, Overloaded):
            wanted = math.inf if error.retry_after_s is None else error.retry_after_s
            return wanted if wanted <= self.longest_overload_s else None
        if isinstance(error, Unavailable):
            return self._backoff_s(num_failures // num_addresses)
        return None

    def _backoff_s(self, num_rounds: int) -> float:
        """Nothing while another address is untried; then random, lest all clients come back at once."""
        if num_rounds == 0:
            return 0.0
        pause_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** (num_rounds - 1))
        return pause_s * random.uniform(0.5, 1.0)


class Deadline:
    """The end of a generation, over all its attempts."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s

    def remaining_s(self) -> float | None:
        """For the next call; None: unlimited. Raises DeadlineExceeded."""
        if self._end_s == math.inf:
            return None
        if not self.allows(0.0):
            raise DeadlineExceeded("timeout_s is over")
        return self._end_s - time.monotonic()

    def allows(self, pause_s: float) -> bool:
        return time.monotonic() + pause_s < self._end_s


class Attempts:
    """The failures of one call since it last made progress."""

    def __init__(self, retry: Retry, num_addresses: int, deadline: Deadline) -> None:
        self._retry = retry
        self._num_addresses = num_addresses
        self._deadline = deadline
        self._num_failures = 0

    def progressed(self) -> None:
        self._num_failures = 0

    async def failed(self, error: ClientError) -> None:
        """Returns when the next attempt may begin. Raises `error` if there must be none."""
        self._num_failures += 1
        pause_s = self._retry.pause_s(error, self._num_failures, self._num_addresses)
        if pause_s is None or not self._deadline.allows(pause_s):
            raise error
        await asyncio.sleep(pause_s)
