"""The gRPC door of a worker: what arrives goes to the device thread, what that answers goes out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from tandem.core.types import Description, Item, Reply
from tandem.rpc.codec import DraftCodec, TargetCodec, description_to_pb
from tandem.rpc.errors import Context
from tandem.v1 import draft_pb2_grpc, target_pb2_grpc, worker_pb2, worker_pb2_grpc

_log = logging.getLogger(__name__)
_PIECES_PER_MESSAGE = 8192
_LOADING = "the worker is loading its model"


class Device(Protocol):
    """What a door needs of the thread behind it."""

    def submit(self, stream: Hashable, items: Sequence[Item]) -> None: ...

    def close_stream(self, stream: Hashable) -> None: ...


class Codec(Protocol):
    """Messages of one kind of stream, as the worker sees them."""

    @staticmethod
    def items(message: Any, /) -> list[Item]: ...

    @staticmethod
    def response(replies: Iterable[Reply], /) -> Any: ...


class Outbox:
    """Replies on their way to one stream: whatever is there when the writer comes leaves in one message."""

    def __init__(self) -> None:
        self._replies: list[Reply] = []
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, reply: Reply) -> None:
        self._replies.append(reply)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    async def take(self) -> list[Reply]:
        """All that waits, at least one; empty once closed."""
        while not self._replies and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        replies, self._replies = self._replies, []
        return replies


class Streams:
    """The open streams of a worker; none before `open`."""

    def __init__(self) -> None:
        self._device: Device | None = None
        self._outboxes: dict[Hashable, Outbox] = {}

    def open(self, device: Device) -> None:
        """From now on items go to `device`."""
        self._device = device

    def deliver(self, answers: Iterable[tuple[Hashable, Reply]]) -> None:
        """Hands the answers of one step to their streams; those of ended streams are dropped."""
        for stream, reply in answers:
            outbox = self._outboxes.get(stream)
            if outbox is not None:
                outbox.put(reply)

    async def serve(self, requests: AsyncIterator[Any], codec: Codec) -> AsyncGenerator[Any]:
        """The life of one stream: items in, replies out, until the caller ends it. Raises NotLoaded."""
        if self._device is None:
            raise NotLoaded
        stream, outbox, device = object(), Outbox(), self._device
        self._outboxes[stream] = outbox
        reader = asyncio.create_task(_read(stream, requests, codec, outbox, device))
        try:
            while replies := await outbox.take():
                yield codec.response(replies)
            await reader
        finally:
            reader.cancel()
            del self._outboxes[stream]
            device.close_stream(stream)


class NotLoaded(Exception):
    """The worker's model is still loading."""


async def _read(stream: Hashable, requests: AsyncIterator[Any], codec: Codec, outbox: Outbox, device: Device) -> None:
    try:
        async for message in requests:
            device.submit(stream, codec.items(message))
    finally:
        outbox.close()


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    """Describe and Vocabulary, for both kinds of worker. UNAVAILABLE before `open`."""

    def __init__(self) -> None:
        self._describe: Callable[[], Description] | None = None
        self._pieces: Sequence[str] = ()

    def open(self, describe: Callable[[], Description], pieces: Sequence[str]) -> None:
        self._describe, self._pieces = describe, pieces

    async def Describe(self, request: Any, context: Context) -> worker_pb2.DescribeResponse:
        if self._describe is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _LOADING)
        assert self._describe is not None
        return description_to_pb(self._describe())

    async def Vocabulary(self, request: Any, context: Context) -> AsyncIterator[worker_pb2.VocabularyResponse]:
        for start in range(0, len(self._pieces), _PIECES_PER_MESSAGE):
            yield worker_pb2.VocabularyResponse(pieces=self._pieces[start : start + _PIECES_PER_MESSAGE])


class DraftServicer(draft_pb2_grpc.DraftServicer):
    """Propose."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def Propose(self, request_iterator: Any, context: Context) -> AsyncIterator[Any]:
        async for message in guarded(self._streams.serve(request_iterator, DraftCodec), context):
            yield message


class TargetServicer(target_pb2_grpc.TargetServicer):
    """Verify."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def Verify(self, request_iterator: Any, context: Context) -> AsyncIterator[Any]:
        async for message in guarded(self._streams.serve(request_iterator, TargetCodec), context):
            yield message


async def guarded(messages: AsyncGenerator[Any], context: Context) -> AsyncIterator[Any]:
    """Ends a stream with a status of ours where it fails: no exception leaves as UNKNOWN."""
    async with contextlib.aclosing(messages) as stream:
        try:
            async for message in stream:
                yield message
        except NotLoaded:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _LOADING)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a message of this stream")
        except Exception:
            _log.exception("a stream failed")
            await context.abort(grpc.StatusCode.INTERNAL, "the stream failed")
