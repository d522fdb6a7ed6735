"""Between a request's rounds and its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from tandem.rpc.mailbox import Mailbox

T = TypeVar("T")


async def one_ahead(items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """The same items; the next one is being made while the consumer is busy with the last, and none beyond it.

    So a worker does not wait for a client that takes a chunk, and a client that takes none stops its request. The next
    call leaves before the chunk does: a consumer that waits for an item has no say in when the one after it is begun.
    """
    made, room = Mailbox[T | None](), Mailbox[None]()
    room.put(None)
    making = asyncio.create_task(_make(items, made, room))
    try:
        while True:
            room.put(None)
            item = await made.take()
            if item is None:
                break
            yield item
        await making
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
        await items.aclose()


async def _make(items: AsyncGenerator[T], made: Mailbox[T | None], room: Mailbox[None]) -> None:
    """Ends with None, which is no item, whether or not it fails."""
    try:
        await room.take()
        async for item in items:
            made.put(item)
            await room.take()
    finally:
        made.put(None)
