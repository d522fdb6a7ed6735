"""The asynchronous client, which is also what the other one runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Self, Unpack

import grpc

from tandem.client.channels import Channels
from tandem.client.codec import chunk_from_pb, request_to_pb, status_from_pb, status_request
from tandem.client.errors import ClientError, Overloaded, ProtocolFault, Unavailable, translated
from tandem.client.progress import Progress
from tandem.client.request import Message, Options, make_request
from tandem.client.results import Chunk, Generation, Status
from tandem.client.retry import Attempts, Deadline, Retry

DEFAULT_ADDRESS = "127.0.0.1:7070"
STATUS_TIMEOUT_S = 10.0
_STATUS_AFTER_FINISH_S = 1.0


class AsyncClient:
    """Asks the coordinator at the first of `addresses` (HOST:PORT), and the next one when it fails.

    Belongs to the event loop that it is first used in. Raises ClientError, see tandem/client/errors.py.
    """

    def __init__(
        self,
        *addresses: str,
        retry: Retry = Retry(),  # noqa: B008  (frozen)
        credentials: grpc.ChannelCredentials | None = None,
        channel_options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._retry = retry
        self._channels = Channels(addresses or (DEFAULT_ADDRESS,), credentials, channel_options)

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Iterable[Message | Mapping[str, str]] | None = None,
        token_ids: Iterable[int] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """Generates from a prompt, a chat or token ids, and returns the whole. `timeout_s` covers all attempts."""
        progress = Progress(make_request(prompt, messages, token_ids, options))
        async with aclosing(self._chunks(progress, timeout_s)) as chunks:
            return progress.generation([chunk async for chunk in chunks])

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Iterable[Message | Mapping[str, str]] | None = None,
        token_ids: Iterable[int] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Chunk]:
        """Generates, chunk by chunk. Begins when first iterated; leaving the loop cancels it.

        Who keeps a name for the generator closes it with `aclose()` or contextlib.aclosing.
        """
        return self._chunks(Progress(make_request(prompt, messages, token_ids, options)), timeout_s)

    async def status(self, *, timeout_s: float | None = STATUS_TIMEOUT_S) -> Status:
        """What is served, by whom, and how much runs."""
        deadline = Deadline(timeout_s)
        attempts = Attempts(self._retry, len(self._channels), deadline)
        while True:
            address = self._channels.current
            try:
                return await self._status_of(address, deadline)
            except ClientError as error:
                self._turn_from(address, error)
                await attempts.failed(error)

    async def close(self) -> None:
        """Ends what is running with ClientClosed; may be called again."""
        await self._channels.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _chunks(self, progress: Progress, timeout_s: float | None) -> AsyncGenerator[Chunk]:
        """One generation, over as many attempts as it takes and may take."""
        deadline = Deadline(timeout_s)
        attempts = Attempts(self._retry, len(self._channels), deadline)
        while not progress.finished:
            address = self._channels.current
            try:
                async with aclosing(self._attempt(address, progress, deadline)) as chunks:
                    async for chunk in chunks:
                        attempts.progressed()
                        yield chunk
            except ClientError as error:
                self._turn_from(address, error)
                await attempts.failed(error)

    async def _attempt(self, address: str, progress: Progress, deadline: Deadline) -> AsyncGenerator[Chunk]:
        request = progress.next_request()
        message = request_to_pb(request)
        with translated(request.request_id):
            call = self._channels.stub(address).Generate(message, timeout=deadline.remaining_s())
            try:
                async for answer in call:
                    yield progress.receive(chunk_from_pb(answer))
                    if progress.finished:
                        await _end_of(call)
                        return
                progress.check_finished()
            finally:
                call.cancel()  # an abandoned call is never collected

    async def _status_of(self, address: str, deadline: Deadline) -> Status:
        with translated():
            call = self._channels.stub(address).Status(status_request(), timeout=deadline.remaining_s())
            return status_from_pb(await call)

    def _turn_from(self, address: str, error: ClientError) -> None:
        if isinstance(error, Unavailable | Overloaded):
            self._channels.leave(address)


async def _end_of(call: Any) -> None:
    """Waits for the status, lest the coordinator takes a finished request for a cancelled one. It changes nothing."""
    with suppress(grpc.RpcError, TimeoutError):
        async with asyncio.timeout(_STATUS_AFTER_FINISH_S):
            async for _ in call:
                raise ProtocolFault("a chunk after the last one")
