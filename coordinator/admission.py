"""How many requests run, how many wait, and who is turned away."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tandem.errors import Overloaded

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0  # that a refused caller is asked to make
_WEIGHT = 1 / 16  # of the last request in the mean time of a slot


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
        self._slot_s = 0.0  # for which a request has its slot, mean of the last ones

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
        began_s = _now()
        try:
            yield
        finally:
            self._slot_s += _WEIGHT * (_now() - began_s - self._slot_s)
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
            raise Overloaded(f"{len(self._waiting)} requests are waiting", self._pause_s())
        if self._waiting and self._num_waiting_tokens + num_tokens > self._limits.max_waiting_tokens:
            raise Overloaded(f"{self._num_waiting_tokens} tokens are waiting", self._pause_s())

    def _pause_s(self) -> float:
        """Until those who wait now have all begun: who comes back sooner is likely to be refused again."""
        pause_s = self._slot_s * len(self._waiting) / self._limits.max_running
        return min(max(pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    def _admit_next(self) -> None:
        while self._waiting and self.num_running < self._limits.max_running:
            turn = self._waiting.popleft()
            if not turn.done():
                self.num_running += 1
                turn.set_result(None)


def _now() -> float:
    return asyncio.get_running_loop().time()
