"""A mailbox keeps what is put into it, in order, whatever happens to its reader."""

from __future__ import annotations

import asyncio

import pytest

from tandem.rpc.mailbox import Mailbox


async def test_items_come_in_order_whether_they_were_waited_for_or_not() -> None:
    mailbox, taken = Mailbox[int](), list[int]()

    async def read() -> None:
        while (item := await mailbox.take()) >= 0:
            taken.append(item)

    reading = asyncio.create_task(read())
    for item in range(9):
        mailbox.put(item)
        if item % 3 == 0:
            await asyncio.sleep(0)
    mailbox.put(-1)
    await reading
    assert taken == list(range(9))


async def test_all_that_is_there_can_be_taken_at_once() -> None:
    mailbox = Mailbox[int]()
    assert mailbox.take_all() == []
    mailbox.put(1)
    mailbox.put(2)
    assert mailbox.take_all() == [1, 2]
    assert mailbox.take_all() == []


@pytest.mark.parametrize("put_first", [False, True])
async def test_a_reader_that_is_cancelled_takes_nothing_with_it(put_first: bool) -> None:
    """Also where the item came in the same turn of the loop, just before the cancel."""
    mailbox = Mailbox[int]()
    reading = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    if put_first:
        mailbox.put(7)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    if not put_first:
        mailbox.put(7)
    assert await mailbox.take() == 7
