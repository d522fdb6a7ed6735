"""Both clients behind one face, so that every test asks both; each also checks that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from harness.waiting import assert_eventually

from tandem.client import AsyncClient, Chunk, Client, Generation, Retry, Status

QUICKLY = Retry(first_pause_s=0.001, longest_pause_s=0.002)


class Asking(Protocol):
    """Addresses first, then the call's arguments."""

    def generate(self, *addresses: str, retry: Retry = QUICKLY, **wanted: Any) -> Generation: ...

    def stream(self, *addresses: str, retry: Retry = QUICKLY, **wanted: Any) -> list[Chunk]: ...

    def status(self, *addresses: str, retry: Retry = QUICKLY) -> Status: ...


class Waiting:
    """Asks by a Client."""

    def generate(self, *addresses: str, retry: Retry = QUICKLY, **wanted: Any) -> Generation:
        with sync_client(*addresses, retry=retry) as client:
            return client.generate(**wanted)

    def stream(self, *addresses: str, retry: Retry = QUICKLY, **wanted: Any) -> list[Chunk]:
        with sync_client(*addresses, retry=retry) as client:
            return list(client.stream(**wanted))

    def status(self, *addresses: str, retry: Retry = QUICKLY) -> Status:
        with sync_client(*addresses, retry=retry) as client:
            return client.status()


class Awaiting:
    """Asks by an AsyncClient."""

    def generate(self, *addresses: str, retry: Retry = QUICKLY, **wanted: Any) -> Generation:
        return self._run(addresses, retry, lambda client: client.generate(**wanted))

    def stream(self, *addresses: str, retry: Retry = QUICKLY, **wanted: Any) -> list[Chunk]:
        return self._run(addresses, retry, lambda client: _listed(client.stream(**wanted)))

    def status(self, *addresses: str, retry: Retry = QUICKLY) -> Status:
        return self._run(addresses, retry, lambda client: client.status())

    @staticmethod
    def _run(addresses: tuple[str, ...], retry: Retry, ask: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with async_client(*addresses, retry=retry) as client:
                return await ask(client)

        return asyncio.run(main())


@contextmanager
def sync_client(*addresses: str, retry: Retry = QUICKLY) -> Iterator[Client]:
    """A client that has left no thread when it is closed."""
    try:
        with Client(*addresses, retry=retry) as client:
            yield client
    finally:
        assert not [thread for thread in threading.enumerate() if thread.name == "tandem-client"]


@asynccontextmanager
async def async_client(*addresses: str, retry: Retry = QUICKLY) -> AsyncGenerator[AsyncClient]:
    """A client that has left no task when it is closed."""
    before = asyncio.all_tasks()
    try:
        async with AsyncClient(*addresses, retry=retry) as client:
            yield client
    finally:
        await assert_eventually(lambda: asyncio.all_tasks() <= before)


async def _listed(chunks: AsyncGenerator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in chunks]


def undisturbed(generation: Generation) -> Generation:
    """Without what may differ between a disturbed generation and another: its name and the number of resumptions."""
    return replace(generation, request_id="", num_resumptions=0)
