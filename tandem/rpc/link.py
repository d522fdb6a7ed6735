"""A coordinator's way to one worker: a channel, watches of its health, a stream, and what it said of itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, Protocol

import grpc

from tandem.config import RpcConfig
from tandem.core.types import Description, Item, Reply
from tandem.errors import WorkerLost
from tandem.rpc.codec import DraftCodec, TargetCodec, description_from_pb
from tandem.rpc.exchange import Exchange
from tandem.rpc.health import LIVENESS, HealthWatch
from tandem.v1 import draft_pb2_grpc, target_pb2_grpc, worker_pb2, worker_pb2_grpc

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_DESCRIBE_TIMEOUT_S = 5.0
_STANDS_STILL = "its step loop stands still"


class Codec(Protocol):
    """Messages of one kind of stream, as the coordinator sees them."""

    @staticmethod
    def request(items: Iterable[Item], /) -> Any: ...

    @staticmethod
    def replies(message: Any, /) -> list[Reply]: ...


def client_options(rpc: RpcConfig) -> list[tuple[str, int]]:
    """Channel options of a client: a cut connection is noticed by keep-alive, not at the deadline."""
    return [
        ("grpc.max_receive_message_length", rpc.max_message_bytes),
        ("grpc.max_send_message_length", rpc.max_message_bytes),
        ("grpc.keepalive_time_ms", int(rpc.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(rpc.keepalive_timeout_s * 1000)),
        ("grpc.http2.ping_timeout_ms", int(rpc.keepalive_timeout_s * 1000)),  # else a minute
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),
    ]


class Gate(Protocol):
    """Decides whether a worker that was reached may be used."""

    async def why_not(self, link: Link, description: Description) -> str:
        """Why the worker must not be used; empty if it may."""
        ...


class Link:
    """Keeps a stream to one worker open, for as long as `run` runs; the gate is asked at every (re)connection.

    A worker whose health says NOT_SERVING is waited for. One that says so while its stream is open is drained: it gets
    no new session, and with the last one the stream ends. One whose liveness ends answers nothing more: it is lost.
    """

    def __init__(self, role: str, address: str, rpc: RpcConfig, gate: Gate) -> None:
        self.role = role
        self.address = address
        self.exchange = Exchange()
        self.description: Description | None = None
        self.reason = "not connected yet"  # why it is not used; empty: it is
        self._rpc = rpc
        self._gate = gate
        self._leaving = self._is_unhealthy = False
        self._channel: grpc.aio.Channel | None = None
        self._codec: Codec = DraftCodec if role == "draft" else TargetCodec

    @property
    def ready(self) -> bool:
        return self.exchange.connected

    async def run(self) -> None:
        """Connects, serves, reconnects; ends when cancelled, or with its stream once it is to `leave`."""
        pause_s = _FIRST_PAUSE_S
        while not self._leaving:
            try:
                with self._reasoned():
                    async with self._connection(), self._watched() as (health, liveness):
                        await self._until(health, "not serving: it is loading, or stopping")
                        await self._until(liveness, _STANDS_STILL)
                        if await self._joined():
                            pause_s = _FIRST_PAUSE_S
                            await self._serve(health, liveness)
            except asyncio.CancelledError:
                self.exchange.lose("closed")
                raise
            finally:
                if self.ready:
                    _log.warning("%s worker %s is lost: %s", self.role, self.address, self.reason)
                self.exchange.lose(self.reason)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def leave(self, leaving: bool = True) -> None:
        """The worker is wanted no more, or again: a stream that is open is drained, and none is opened after it."""
        self._leaving = leaving
        if self.ready:
            self._drain()

    async def pieces(self) -> list[str]:
        """The worker's vocabulary, in id order. Raises grpc.aio.AioRpcError."""
        call = self._worker_stub().Vocabulary(worker_pb2.VocabularyRequest())
        try:
            return [piece async for message in call for piece in message.pieces]
        finally:
            call.cancel()

    async def describe(self) -> Description:
        """What the worker says of itself now. Raises grpc.aio.AioRpcError."""
        answer = await self._worker_stub().Describe(worker_pb2.DescribeRequest(), timeout=_DESCRIBE_TIMEOUT_S)
        return description_from_pb(answer)

    @contextlib.contextmanager
    def _reasoned(self) -> Iterator[None]:
        """Takes the reason from what ended a connection, and lets go of the error where it is caught.

        One that a task keeps lives with all that its traceback shows until the collector comes. A gRPC call among that
        keeps its channel, closed or not, at reconnecting.
        """
        try:
            yield
        except grpc.aio.AioRpcError as error:
            self.reason = f"{error.code().name}: {error.details()}"
        except WorkerLost as error:
            self.reason = str(error)
        except Exception as error:  # a write to a stream that has just ended, a message that cannot be encoded
            _log.exception("the stream to the %s worker %s failed", self.role, self.address)
            self.reason = f"the stream failed: {error!r}"

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[None]:
        async with grpc.aio.insecure_channel(self.address, options=client_options(self._rpc)) as self._channel:
            yield

    def _worker_stub(self) -> Any:
        return worker_pb2_grpc.WorkerStub(self._channel)

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[tuple[HealthWatch, HealthWatch]]:
        health = HealthWatch(self._channel, f"tandem.v1.{self.role.capitalize()}")
        async with contextlib.aclosing(health), contextlib.aclosing(HealthWatch(self._channel, LIVENESS)) as liveness:
            yield health, liveness

    async def _until(self, watch: HealthWatch, reason: str) -> None:
        """Returns once it says SERVING; until then, the reason."""
        while not await watch.changed():
            self.reason = reason

    async def _joined(self) -> bool:
        self.description = await self.describe()
        before, self.reason = self.reason, await self._gate.why_not(self, self.description)
        if self.reason and self.reason != before:
            _log.warning("%s worker %s is not used: %s", self.role, self.address, self.reason)
        return not self.reason

    async def _serve(self, health: HealthWatch, liveness: HealthWatch) -> None:
        stream = self._open_stream()
        parts = (self._read, stream), (self._write, stream), (self._follow, health), (self._outlive, liveness)
        ends = [asyncio.create_task(self._until_end(part, of)) for part, of in parts]
        try:
            self.exchange.connect()
            _log.info("%s worker %s joined", self.role, self.address)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stream.cancel()
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _until_end(self, part: Callable[[Any], Coroutine[Any, Any, None]], of: Any) -> None:
        with self._reasoned():
            await part(of)
            self.reason = "drained" if self.exchange.draining else "the worker ended the stream"

    def _open_stream(self) -> Any:
        if self.role == "draft":
            return draft_pb2_grpc.DraftStub(self._channel).Propose()
        return target_pb2_grpc.TargetStub(self._channel).Verify()

    async def _read(self, stream: Any) -> None:
        async for message in stream:
            self.exchange.receive(self._codec.replies(message))

    async def _write(self, stream: Any) -> None:
        while items := await self.exchange.outgoing():
            await stream.write(self._codec.request(items))
        await stream.done_writing()
        await stream.code()  # the worker has all that was sent once it ends its side

    async def _follow(self, health: HealthWatch) -> None:
        self._is_unhealthy = False
        while True:
            self._is_unhealthy = not await health.changed()
            self._drain()

    async def _outlive(self, liveness: HealthWatch) -> None:
        while await liveness.changed():
            pass
        raise WorkerLost(_STANDS_STILL)

    def _drain(self) -> None:
        draining = self._leaving or self._is_unhealthy
        if draining != self.exchange.draining:
            self.reason = "draining" if draining else ""
            _log.info("%s worker %s %s", self.role, self.address, "drains" if draining else "serves again")
            self.exchange.drain(draining)
