"""How long the parts of a request take, by the event loop's clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Stopwatch:
    """Durations of one request in seconds, from its arrival."""

    def __init__(self) -> None:
        self._arrived = self._lap_began = self._now()
        self.queue_s = 0.0  # before the first model call
        self.first_token_s = 0.0
        self.verify_s = 0.0
        self.prompt_s = 0.0  # of verify_s: the first verify, which computes the prompt
        self.draft_wait_s = 0.0  # no verify ran because a draft was awaited

    @property
    def total_s(self) -> float:
        return self._now() - self._arrived

    def admitted(self) -> None:
        self.queue_s = self.total_s

    def lap(self) -> float:
        """Seconds since `begin_lap`, or since the last lap."""
        began, self._lap_began = self._lap_began, self._now()
        return self._lap_began - began

    def begin_lap(self) -> None:
        """What has passed since the last lap was not of a round: the client took its time to read."""
        self._lap_began = self._now()

    def token_came(self) -> None:
        self.first_token_s = self.first_token_s or self.total_s

    @contextlib.contextmanager
    def verifying(self) -> Iterator[None]:
        began = self._now()
        yield
        self.verify_s += self._now() - began
        self.prompt_s = self.prompt_s or self.verify_s

    @contextlib.contextmanager
    def waiting_for_draft(self) -> Iterator[None]:
        began = self._now()
        yield
        self.draft_wait_s += self._now() - began

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
