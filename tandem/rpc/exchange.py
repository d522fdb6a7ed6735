"""Calls on a shared stream: who waits for which reply, and what is queued to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tandem.core.types import Cancel, Item, Propose, Release, Reply, Verify
from tandem.errors import WorkerLost


class OpenCall:
    """A call on its way; its replies arrive one by one. Whoever opened it closes it."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._replies: asyncio.Queue[Reply | WorkerLost] = asyncio.Queue()
        self.close = close  # nothing that arrives later reaches this call

    def put(self, reply: Reply | WorkerLost) -> None:
        self._replies.put_nowait(reply)

    async def reply(self) -> Reply:
        """The next reply. Raises WorkerLost when the stream has broken."""
        reply = await self._replies.get()
        if isinstance(reply, WorkerLost):
            self._replies.put_nowait(reply)
            raise reply
        return reply

    def arrived(self) -> list[Reply]:
        """Replies that have come and were not looked at."""
        waiting = [self._replies.get_nowait() for _ in range(self._replies.qsize())]
        return [reply for reply in waiting if not isinstance(reply, WorkerLost)]


class Exchange:
    """Both ends of the calls of one worker, whatever carries them.

    The carrier takes `outgoing()` and sends it, gives what comes back to `receive()`, and says `lose()` when it breaks.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[bytes, int], OpenCall] = {}
        self._outgoing: list[Item] = []
        self._changed = asyncio.Event()
        self._connected = asyncio.Event()
        self._lost = asyncio.Event()
        self._lost.set()

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    async def wait_connected(self) -> None:
        await self._connected.wait()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    def open(self, item: Verify | Propose) -> OpenCall:
        """Sends a call. If there is no stream it is lost already."""
        key = (item.call.session_id, item.call.number)
        call = OpenCall(lambda: self._forget(key))
        if self.connected:
            self._calls[key] = call
            self.post(item)
        else:
            call.put(WorkerLost("not connected"))
        return call

    def cancel(self, session_id: bytes, number: int) -> None:
        """Ends a call at the worker's next step border."""
        self.post(Cancel(session_id, number))

    def release(self, session_id: bytes) -> None:
        """Ends a session at the worker, for good."""
        self.post(Release(session_id))

    def post(self, item: Item) -> None:
        if self.connected:
            self._outgoing.append(item)
            self._changed.set()

    def connect(self) -> None:
        """A stream is up."""
        self._lost.clear()
        self._connected.set()

    def lose(self, reason: str) -> None:
        """The stream broke: its open calls end as "worker lost", what is queued for it is void."""
        self._connected.clear()
        self._lost.set()
        self._outgoing.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.put(WorkerLost(reason))

    async def outgoing(self) -> list[Item]:
        """All that is queued, at least one item."""
        while not self._outgoing:
            self._changed.clear()
            await self._changed.wait()
        items, self._outgoing = self._outgoing, []
        return items

    def receive(self, replies: Sequence[Reply]) -> None:
        """Hands replies to those who wait; late and unknown ones are dropped."""
        for reply in replies:
            call = self._calls.get((reply.session_id, reply.number))
            if call is not None:
                call.put(reply)

    def _forget(self, key: tuple[bytes, int]) -> None:
        self._calls.pop(key, None)
