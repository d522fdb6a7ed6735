"""Calls on a shared stream: who waits for which reply, and what is queued to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tandem.core.types import Cancel, Drafted, Item, Propose, Release, Reply, Verdict, Verify
from tandem.errors import WorkerLost
from tandem.rpc.mailbox import Mailbox


class OpenCall:
    """A call on its way; its replies arrive one by one. Whoever opened it closes it."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._replies: Mailbox[Reply | WorkerLost] = Mailbox()
        self.close = close  # nothing that arrives later reaches this call
        self.opened_s = asyncio.get_running_loop().time()

    def put(self, reply: Reply | WorkerLost) -> None:
        self._replies.put(reply)

    async def reply(self) -> Reply:
        """The next reply. Raises WorkerLost when the stream has broken."""
        reply = await self._replies.take()
        if isinstance(reply, WorkerLost):
            self._replies.put(reply)
            raise reply
        return reply

    def arrived(self) -> list[Reply]:
        """Replies that have come and were not looked at."""
        return [reply for reply in self._replies.take_all() if not isinstance(reply, WorkerLost)]


class Exchange:
    """Both ends of the calls of one worker, whatever carries them.

    The carrier takes `outgoing()` and sends it, gives what comes back to `receive()`, and says `lose()` when it breaks.
    It may say `drain()` before: then the stream ends with its last session.
    """

    def __init__(self) -> None:
        self.draining = False  # takes no new session
        self.listeners: list[Callable[[], None]] = []  # called after a connection, a drain or a loss
        self.on_answer: Callable[[float], None] = lambda seconds: None  # told how long a call took, once it is answered
        self._calls: dict[tuple[bytes, int], OpenCall] = {}
        self._sessions: set[bytes] = set()  # called and not released
        self._outgoing: list[Item] = []
        self._changed = asyncio.Event()
        self._connected = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def num_sessions(self) -> int:
        """Sessions of ours that the worker has."""
        return len(self._sessions)

    async def wait_connected(self) -> None:
        await self._connected.wait()

    def open(self, item: Verify | Propose) -> OpenCall:
        """Sends a call. If there is no stream it is lost already."""
        key = (item.call.session_id, item.call.number)
        call = OpenCall(lambda: self._forget(key))
        if self.connected:
            self._calls[key] = call
            self._sessions.add(item.call.session_id)
            self.post(item)
        else:
            call.put(WorkerLost("not connected"))
        return call

    def cancel(self, session_id: bytes, number: int) -> None:
        """Ends a call at the worker's next step border."""
        self.post(Cancel(session_id, number))

    def release(self, session_id: bytes) -> None:
        """Ends a session at the worker, for good."""
        self._sessions.discard(session_id)
        self.post(Release(session_id))

    def post(self, item: Item) -> None:
        if self.connected:
            self._outgoing.append(item)
            self._changed.set()

    def connect(self) -> None:
        """A stream is up."""
        self.draining = False
        self._connected.set()
        self._tell()

    def drain(self, draining: bool = True) -> None:
        """New sessions are to go elsewhere, or may come again."""
        self.draining = draining
        self._changed.set()
        self._tell()

    def lose(self, reason: str) -> None:
        """The stream broke: its open calls end as "worker lost", what is queued for it is void."""
        self._disconnect()
        self._outgoing.clear()
        self._sessions.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.put(WorkerLost(reason))

    async def outgoing(self) -> list[Item]:
        """All that is queued, at least one item; empty once the last session of a draining worker has ended."""
        while not self._outgoing:
            if self.draining and not self._sessions:
                self._disconnect()
                break
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
                if _is_whole(reply.body):
                    self.on_answer(asyncio.get_running_loop().time() - call.opened_s)

    def _disconnect(self) -> None:
        self._connected.clear()
        self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    def _forget(self, key: tuple[bytes, int]) -> None:
        self._calls.pop(key, None)


def _is_whole(body: object) -> bool:
    """Whether an answer ends with it. Refusals say nothing of how long an answer takes."""
    return isinstance(body, Verdict) or (isinstance(body, Drafted) and body.done)
