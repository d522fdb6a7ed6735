"""How long a request waits for a target worker, and in which order requests wait for its memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass, field

from tandem.errors import Overloaded, Unavailable, WorkerLost

_PAUSE_S = 0.02  # between two tries for memory
_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Shared by the requests of a coordinator. Only the one whose turn it is asks again for memory: first come, first
    served, and the worker is not asked by all at once."""

    worker_s: float  # longest time without a verdict from the first loss of a worker on
    memory_s: float  # longest wait for memory
    answer_s: float = 600.0  # longest wait for a verdict; ends a request whose worker lives but stands still
    memory_turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def start(self) -> Waiting:
        """The waiting of one verify."""
        return Waiting(self)


class Waiting(contextlib.AsyncExitStack):
    """What one verify has waited for so far; its turn for memory ends with it."""

    def __init__(self, patience: Patience) -> None:
        super().__init__()
        self._patience = patience
        self._lost_for_good_at: float | None = None
        self._give_up_at: float | None = None

    async def in_line(self) -> None:
        """For one that comes anew: behind those who wait for memory already."""
        if self._patience.memory_turn.locked():
            await self.for_memory()

    async def for_memory(self) -> None:
        """Returns when memory is worth another try. Raises Overloaded when that has gone on for too long."""
        loop = asyncio.get_running_loop()
        try:
            if self._give_up_at is None:
                self._give_up_at = loop.time() + self._patience.memory_s
                async with asyncio.timeout_at(self._give_up_at):
                    await self.enter_async_context(self._patience.memory_turn)
            else:
                async with asyncio.timeout_at(self._give_up_at):
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError as error:
            raise Overloaded("the target worker has no memory for the request", _RETRY_AFTER_S) from error

    async def for_worker(self, error: WorkerLost, found: Awaitable[None]) -> None:
        """Returns when a worker is `found`. Raises Unavailable when that takes too long, all losses together."""
        now = asyncio.get_running_loop().time()
        self._lost_for_good_at = self._lost_for_good_at or now + self._patience.worker_s
        try:
            async with asyncio.timeout_at(self._lost_for_good_at):
                await found
        except TimeoutError:
            raise Unavailable("no target worker is ready") from error
        if now > self._lost_for_good_at:
            raise Unavailable("the target worker was lost again and again") from error
