"""A link outlives whatever happens to its stream. Families I91, I94."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import grpc
import pytest
from harness.services import LocalWorker
from harness.virtual_time import run_virtual
from harness.waiting import assert_eventually
from harness.way import Way
from harness.worker_calls import session_id, verify

from tandem.config import RpcConfig
from tandem.core.types import Description, Release
from tandem.errors import WorkerLost
from tandem.rpc.exchange import Exchange
from tandem.rpc.link import Link


class EndsUnderTheWriter:
    """A stream that is done by the time somebody writes to it, as when a worker is killed while items are queued."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._is_done = asyncio.Event()

    async def write(self, message: object) -> None:
        self._is_done.set()
        raise self._error

    def cancel(self) -> None:
        self._is_done.set()

    def __aiter__(self) -> AsyncIterator[object]:
        return self

    async def __anext__(self) -> object:
        await self._is_done.wait()
        raise StopAsyncIteration


class StubbornReader(EndsUnderTheWriter):
    """A stream that cannot be written to any more, while nothing says so to its reader."""

    async def write(self, message: object) -> None:
        raise self._error


class AlwaysHealthy:
    """A watch that says so once."""

    def __init__(self) -> None:
        self._said = False

    async def changed(self) -> bool:
        if self._said:
            await asyncio.Event().wait()
        self._said = True
        return True

    async def aclose(self) -> None:
        pass


class UnreliableLink(Link):
    """Reaches its worker without a network, over the streams it is given; the last one again and again."""

    def __init__(self, streams: list[EndsUnderTheWriter]) -> None:
        super().__init__("target", "nowhere", RpcConfig(), gate=None)  # type: ignore[arg-type]
        self._streams = streams
        self.num_opened = 0

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[None]:
        yield

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[tuple[AlwaysHealthy, AlwaysHealthy]]:  # type: ignore[override]
        yield AlwaysHealthy(), AlwaysHealthy()

    async def _joined(self) -> bool:
        return True

    def _open_stream(self) -> EndsUnderTheWriter:
        self.num_opened += 1
        return self._streams.pop(0) if len(self._streams) > 1 else self._streams[0]


@pytest.mark.parametrize("kind", [EndsUnderTheWriter, StubbornReader])
@pytest.mark.parametrize(
    "error", [asyncio.InvalidStateError("RPC already finished"), ValueError("too large")], ids=repr
)
def test_a_write_that_fails_ends_the_calls_and_the_link_connects_again(
    kind: type[EndsUnderTheWriter], error: Exception
) -> None:
    async def run() -> None:
        link = UnreliableLink([kind(error)])
        running = asyncio.create_task(link.run())
        for attempt in range(1, 4):
            await asyncio.wait_for(link.exchange.wait_connected(), 5.0)
            call = link.exchange.open(verify(1, attempt, [1, 2]))
            with pytest.raises(WorkerLost):
                await asyncio.wait_for(call.reply(), 5.0)
            call.close()
            await asyncio.sleep(0)
            assert not running.done(), "the link is gone for good"
            assert link.num_opened == attempt
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    run_virtual(run())


def test_a_lost_stream_ends_its_calls_and_voids_what_is_queued() -> None:
    async def run() -> None:
        exchange = Exchange()
        exchange.connect()
        call = exchange.open(verify(1, 1, [1, 2]))
        exchange.lose("gone")
        for _ in range(2):
            with pytest.raises(WorkerLost, match="gone"):
                await call.reply()
        exchange.connect()
        exchange.release(session_id(1))
        assert await exchange.outgoing() == [Release(session_id(1))]

    run_virtual(run())


def test_a_call_without_a_stream_is_lost_at_once() -> None:
    async def run() -> None:
        exchange = Exchange()
        with pytest.raises(WorkerLost):
            await exchange.open(verify(1, 1, [1, 2])).reply()
        assert not exchange._calls

    run_virtual(run())


class Usher:
    """A gate that says the same to everyone."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason

    async def why_not(self, link: Link, description: Description) -> str:
        return self._reason


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.asynccontextmanager
async def running(link: Link) -> AsyncIterator[None]:
    task = asyncio.create_task(link.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def living_calls() -> list[str]:
    return [type(each).__name__ for each in gc.get_objects() if issubclass(type(each), grpc.aio.Call)]


async def is_killed(link: Link, worker: LocalWorker, way: Way) -> None:
    await assert_eventually(lambda: link.ready)
    way.cut()
    await assert_eventually(lambda: not link.ready)


async def drains(link: Link, worker: LocalWorker, way: Way) -> None:
    await assert_eventually(lambda: link.ready)
    await worker.stop(grace_s=10.0)
    await assert_eventually(lambda: not link.ready)


async def is_out_of_reach(link: Link, worker: LocalWorker, way: Way) -> None:
    way.cut()
    await assert_eventually(lambda: "UNAVAILABLE" in link.reason)


async def is_not_let_in(link: Link, worker: LocalWorker, way: Way) -> None:
    await assert_eventually(lambda: link.reason == "a stranger")


async def is_left(link: Link, worker: LocalWorker, way: Way) -> None:
    await assert_eventually(lambda: link.ready)


@pytest.mark.parametrize("end", [is_killed, drains, is_out_of_reach, is_not_let_in, is_left])
async def test_however_a_connection_ends_no_call_of_it_lives_on(
    end: Callable[[Link, LocalWorker, Way], Awaitable[None]],
) -> None:
    """A call that lives, in the traceback of an error that a task keeps, lets its closed channel connect again."""
    worker = LocalWorker("target", "target")
    await worker.start()
    way = Way(lambda: worker.port)
    await way.open()
    link = Link("target", way.address, RpcConfig(), Usher("a stranger" if end is is_not_let_in else ""))
    with without_collector():
        async with running(link):
            await end(link, worker, way)
        await assert_eventually(lambda: not living_calls())
    await way.close()
    await worker.stop()
