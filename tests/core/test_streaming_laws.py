"""One item is made ahead, never two; and what a generator raises or is thrown arrives where it must."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from coordinator.streaming import one_ahead


class Maker:
    """Numbers, and how far it has come."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.num_made, self.closed = 0, False

    async def items(self) -> AsyncGenerator[int]:
        try:
            for number in range(self.count):
                await asyncio.sleep(0)
                self.num_made += 1
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def until_still(maker: Maker) -> int:
    """Where a maker stands that goes no further by itself."""
    for _ in range(20):
        await asyncio.sleep(0)
    return maker.num_made


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_the_same_items_come_in_order(count: int) -> None:
    async def scenario() -> list[int]:
        maker = Maker(count)
        numbers = [number async for number in one_ahead(maker.items())]
        assert maker.closed
        return numbers

    assert asyncio.run(scenario()) == list(range(count))


def test_the_next_item_is_made_while_the_last_is_used_and_none_beyond_it() -> None:
    async def scenario() -> None:
        maker = Maker(9)
        async with contextlib.aclosing(one_ahead(maker.items())) as items:
            async for number in items:
                assert await until_still(maker) == min(number + 2, 9)

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [0, 1, 5])
def test_an_error_comes_after_the_items_before_it(count: int) -> None:
    async def scenario() -> list[int]:
        maker, numbers = Maker(count, RuntimeError("in between")), []
        with pytest.raises(RuntimeError, match="in between"):
            async for number in one_ahead(maker.items()):
                numbers.append(number)
        assert maker.closed
        return numbers

    assert asyncio.run(scenario()) == list(range(count))


@pytest.mark.parametrize("num_taken", [0, 1, 3])
def test_a_consumer_that_leaves_or_is_cancelled_closes_the_generator(num_taken: int) -> None:
    async def consume(maker: Maker, taken: asyncio.Event) -> None:
        async with contextlib.aclosing(one_ahead(maker.items())) as items:
            for _ in range(num_taken):
                await anext(items)
            taken.set()
            await asyncio.Event().wait()

    async def scenario() -> None:
        maker, taken = Maker(9), asyncio.Event()
        before = asyncio.all_tasks()
        task = asyncio.create_task(consume(maker, taken))
        await taken.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert maker.closed or not maker.num_made
        assert asyncio.all_tasks() == before

    asyncio.run(scenario())


def test_who_waits_for_an_item_finds_the_next_one_begun() -> None:
    """So that the next call is on its way to the worker before the chunk is on its way to the client."""

    async def scenario() -> None:
        events: list[str] = []

        async def items() -> AsyncGenerator[int]:
            for number in range(5):
                events.append(f"begins {number}")
                await asyncio.sleep(0)
                yield number

        async for number in one_ahead(items()):
            events.append(f"takes {number}")
            for _ in range(9):
                await asyncio.sleep(0)
        assert events.index("begins 1") < events.index("takes 0")
        assert events.index("takes 0") < events.index("begins 2")

    asyncio.run(scenario())
