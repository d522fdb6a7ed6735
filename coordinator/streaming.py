"""Between a request's rounds and its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def one_ahead(items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """The same items; the next one is being made while the consumer is busy with the last, and none beyond it.

    So a worker does not wait for a client that takes a chunk, and a client that takes none stops its request.
    """
    making = asyncio.create_task(_next(items))
    try:
        while True:
            try:
                item = await making
            except StopAsyncIteration:
                return
            making = asyncio.create_task(_next(items))
            yield item
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
        await items.aclose()


async def _next(items: AsyncGenerator[T]) -> T:
    return await anext(items)
