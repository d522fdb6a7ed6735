"""The client for callers without an event loop. All it knows is how to wait for the other one."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

import grpc

from tandem.client.asynchronous import STATUS_TIMEOUT_S, AsyncClient
from tandem.client.loop_thread import LoopThread
from tandem.client.request import Message, Options
from tandem.client.results import Chunk, Generation, Status
from tandem.client.retry import Retry


class Client:
    """Asks the coordinator at the first of `addresses` (HOST:PORT), and the next one when it fails.

    Safe to use from any thread. Raises ClientError, see tandem/client/errors.py.
    """

    def __init__(
        self,
        *addresses: str,
        retry: Retry = Retry(),  # noqa: B008  (frozen)
        credentials: grpc.ChannelCredentials | None = None,
        channel_options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        client = AsyncClient(*addresses, retry=retry, credentials=credentials, channel_options=channel_options)
        self._client = client
        self._thread = LoopThread("tandem-client", client.close)
        self._finalizer = weakref.finalize(self, self._thread.stop)  # also when the interpreter ends

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Iterable[Message | Mapping[str, str]] | None = None,
        token_ids: Iterable[int] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """Generates from a prompt, a chat or token ids, and returns the whole. `timeout_s` covers all attempts."""
        return self._thread.run(
            self._client.generate, prompt, messages=messages, token_ids=token_ids, timeout_s=timeout_s, **options
        )

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Iterable[Message | Mapping[str, str]] | None = None,
        token_ids: Iterable[int] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generator[Chunk]:
        """Generates, chunk by chunk. Begins when first iterated; leaving the loop, or `close()`, cancels it."""
        chunks = self._client.stream(prompt, messages=messages, token_ids=token_ids, timeout_s=timeout_s, **options)
        return self._waited_for(chunks)

    def status(self, *, timeout_s: float | None = STATUS_TIMEOUT_S) -> Status:
        """What is served, by whom, and how much runs."""
        return self._thread.run(self._client.status, timeout_s=timeout_s)

    def close(self) -> None:
        """Ends what is running, in whatever thread, with ClientClosed; may be called again."""
        self._thread.stop()
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _waited_for(self, chunks: AsyncGenerator[Chunk]) -> Generator[Chunk]:
        """A method, so that a client lives as long as its streams."""
        turn = asyncio.Lock()  # closing waits until an interrupted step has unwound
        self._thread.kept.add(chunks)
        try:
            while (chunk := self._thread.run(_next, chunks, turn)) is not None:
                yield chunk
        finally:
            self._thread.post(_close, chunks, turn, self._thread.kept)


async def _next(chunks: AsyncGenerator[Chunk], turn: asyncio.Lock) -> Chunk | None:
    async with turn:
        return await anext(chunks, None)


async def _close(chunks: AsyncGenerator[Chunk], turn: asyncio.Lock, kept: set[object]) -> None:
    try:
        async with turn:
            await chunks.aclose()
    finally:
        kept.discard(chunks)
