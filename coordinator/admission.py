"""How many requests run, how many wait, and who is turned away."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tandem.errors import Overloaded

_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_waiting_tokens` counts prompt tokens and the output tokens that may come."""

    max_running: int
    max_waiting: int
    max_waiting_tokens: int


class Admission:
    """Slots for running requests, given in the order of arrival. One whose caller has gone leaves the queue at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.num_running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._num_waiting_tokens = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def slot(self, num_tokens: int) -> AsyncIterator[None]:
        """A slot for a request of up to `num_tokens` tokens. Raises Overloaded at once where the queue is full."""
        if self.num_running < self._limits.max_running and not self._waiting:
            self.num_running += 1
        else:
            await self._wait(num_tokens)
        try:
            yield
        finally:
            self.num_running -= 1
            self._admit_next()

    async def _wait(self, num_tokens: int) -> None:
        self._check_room(num_tokens)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._num_waiting_tokens += num_tokens
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # a slot had just been given
                self.num_running -= 1
                self._admit_next()
            raise
        finally:
            self._num_waiting_tokens -= num_tokens
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)

    def _check_room(self, num_tokens: int) -> None:
        if len(self._waiting) >= self._limits.max_waiting:
            raise Overloaded(f"{len(self._waiting)} requests are waiting", _RETRY_AFTER_S)
        if self._waiting and self._num_waiting_tokens + num_tokens > self._limits.max_waiting_tokens:
            raise Overloaded(f"{self._num_waiting_tokens} tokens are waiting", _RETRY_AFTER_S)

    def _admit_next(self) -> None:
        while self._waiting and self.num_running < self._limits.max_running:
            turn = self._waiting.popleft()
            if not turn.done():
                self.num_running += 1
                turn.set_result(None)
