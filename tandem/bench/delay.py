"""A longer way between two services: TCP relays that hold everything back for half a round trip, in order.

They run in a process of their own, on an event loop that waits to the microsecond: the usual one rounds waits up to
whole milliseconds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import selectors
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

_READY_S = 120.0


class Relays:
    """Addresses to dial instead of the real ones, and the delay of what passes from now on."""

    def __init__(self, addresses: Sequence[str], round_trip: Any, to_relays: Connection) -> None:
        self.addresses = tuple(addresses)
        self._round_trip = round_trip
        self._to_relays = to_relays

    def lead_to(self, targets: Sequence[str]) -> None:
        """Where each of the addresses leads ("host:port"); to be said before the first is dialled."""
        self._to_relays.send(list(targets))
        self._to_relays.recv()  # they have taken it

    def add_round_trip(self, seconds: float) -> None:
        """Each way takes half of it longer."""
        self._round_trip.value = seconds


@contextmanager
def relays(number: int) -> Iterator[Relays]:
    """So many relays while entered. They hold their ports before anybody looks for free ones."""
    context = multiprocessing.get_context("spawn")
    round_trip = context.Value("d", 0.0, lock=False)
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(number, round_trip, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(_READY_S):
            raise TimeoutError("the relays did not start")
        yield Relays([f"127.0.0.1:{port}" for port in ours.recv()], round_trip, ours)
    finally:
        process.terminate()
        process.join()


def _main(number: int, round_trip: Any, parent: Connection) -> None:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_relay(number, round_trip, parent))


async def _relay(number: int, round_trip: Any, parent: Connection) -> None:
    targets: list[str] = []
    servers = [await _listen(targets, index, round_trip) for index in range(number)]
    parent.send([server.sockets[0].getsockname()[1] for server in servers])
    targets += await asyncio.to_thread(parent.recv)
    parent.send(None)
    await asyncio.Event().wait()


async def _listen(targets: Sequence[str], index: int, round_trip: Any) -> asyncio.Server:
    loop = asyncio.get_running_loop()

    def accept() -> End:
        host, _, port = targets[index].rpartition(":")
        near, far = End(round_trip), End(round_trip)
        near.other, far.other = far, near
        near.dialling = asyncio.ensure_future(loop.create_connection(lambda: far, host, int(port)))
        near.dialling.add_done_callback(lambda dialled: near.close() if dialled.exception() else None)
        return near

    return await loop.create_server(accept, "127.0.0.1", 0)


class End(asyncio.Protocol):
    """One end of a relayed connection: what it receives leaves at the other end, later."""

    other: End

    def __init__(self, round_trip: Any) -> None:
        self.dialling: asyncio.Future[Any] | None = None
        self._round_trip = round_trip
        self._transport: asyncio.Transport | None = None
        self._due: deque[tuple[float, bytes]] = deque()  # times never fall: what comes later leaves later
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send_due()

    def data_received(self, data: bytes) -> None:
        self.other.send_later(data, self._round_trip.value / 2)

    def connection_lost(self, error: Exception | None) -> None:
        self.other.close()

    def send_later(self, data: bytes, delay_s: float) -> None:
        due = asyncio.get_running_loop().time() + delay_s
        self._due.append((max(due, self._due[-1][0]) if self._due else due, data))
        self._send_due()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _send_due(self) -> None:
        """Sends what is due, and comes back for the next."""
        if self._transport is None or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        while self._due and self._due[0][0] <= loop.time():
            self._transport.write(self._due.popleft()[1])
        if self._due:
            self._timer = loop.call_at(self._due[0][0], self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._send_due()
