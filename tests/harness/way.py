"""A TCP way over loopback that a test can hold, slow down, cut and heal.

    caller ──> port of the way ──> port behind it

held   nothing gets through, in either direction, and nothing is lost: a partition, or a process that is stopped
cut    every connection ends at once, and nobody listens: a process that was killed
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

HOST = "127.0.0.1"
_PIECE = 1 << 16


class Way:
    """To the port that `port_behind` names when a connection is made; its own port stays the same for life."""

    def __init__(self, port_behind: Callable[[], int], delay_s: Callable[[], float] = lambda: 0.0) -> None:
        """`delay_s` is asked for every piece that passes; pieces stay in order."""
        self.delay_s = delay_s
        self.num_held = 0  # pieces that arrived while the way was held
        self._port_behind = port_behind
        self._reserved = _bound_socket(0)
        self.port: int = self._reserved.getsockname()[1]
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._passages: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def num_connections(self) -> int:
        return len(self._passages)

    async def open(self) -> None:
        """Listens; after `cut` again."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, sock=_bound_socket(self.port))

    def hold(self) -> None:
        self._flows.clear()

    def release(self) -> None:
        """What was held arrives now, late."""
        self._flows.set()

    def cut(self) -> None:
        """What is under way is lost."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for passage in self._passages:
            passage.cancel()
        self._flows.set()

    async def close(self) -> None:
        """For good."""
        self.cut()
        await asyncio.gather(*self._passages, return_exceptions=True)
        self._reserved.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passages.add(task)
        try:
            if self._server is not None:  # else it was cut after the connection was made
                await self._pass(reader, writer)
        except asyncio.CancelledError:
            pass  # cut; a connection's task that ends as cancelled is reported as an error
        finally:
            self._passages.discard(task)
            await _abort(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until both directions have ended or one of them is broken."""
        try:
            behind_reader, behind_writer = await asyncio.open_connection(HOST, self._port_behind())
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, behind_writer))
                pumps.create_task(self._pump(behind_reader, writer))
        except* OSError:
            pass
        finally:
            await _abort(behind_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(_PIECE):
            self.num_held += not self._flows.is_set()
            await self._flows.wait()
            if delay_s := self.delay_s():
                await asyncio.sleep(delay_s)
            writer.write(piece)
            await writer.drain()
        await self._flows.wait()
        writer.write_eof()


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port that nobody else is given while this is entered; whoever asks for it by number can listen on it."""
    with _bound_socket(0) as reserved:
        yield reserved.getsockname()[1]


def _bound_socket(port: int) -> socket.socket:
    """Bound and not listening: it refuses connections, and keeps the port from everybody else."""
    # asyncio turns Nagle's algorithm off on sockets that say they are TCP; with it small pieces wait for one another.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound
