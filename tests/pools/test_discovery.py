"""From names to addresses, over and over, whatever the resolver does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from harness.virtual_time import run_virtual

from coordinator.discovery import follow, system_resolver


async def test_the_systems_resolver_gives_addresses_that_can_be_dialled() -> None:
    found = await system_resolver("localhost", 7072)
    assert found and set(found) <= {"127.0.0.1:7072", "[::1]:7072"}
    assert await system_resolver("127.0.0.1", 1) == ["127.0.0.1:1"]


@pytest.mark.parametrize("host", ["a" * 70, "two..dots"])
async def test_a_name_that_cannot_be_one_is_a_failure_like_others(host: str) -> None:
    with pytest.raises((OSError, ValueError)):
        await system_resolver(host, 7072)


def told(answers: Iterator[Any], num_answers: int) -> list[Any]:
    """What is told of as many answers of a resolver: an exception that it raises, addresses, or None: it hangs."""
    heard = list[Any]()

    async def resolve(host: str, port: int) -> Collection[str]:
        assert (host, port) == ("workers", 7)
        answer = next(answers)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    async def run() -> None:
        task = asyncio.create_task(follow("workers:7", resolve, 1.0, heard.append, heard.append, asyncio.Event().wait))
        while len(heard) < num_answers:
            await asyncio.sleep(0.5)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    run_virtual(run())
    return heard


def test_every_answer_is_told_and_no_failure_ends_the_following() -> None:
    failures = [socket.gaierror(-2, "no such name"), OSError("net"), UnicodeError("label too long"), None, []]
    good = ["10.0.0.1:7", "10.0.0.2:7"]
    for failure in failures:
        first, second, third = told(iter([good, failure, good]), 3)
        assert first == third == good
        assert isinstance(second, str) and second.startswith("workers ")


@pytest.mark.parametrize(("is_anybody_there", "num_asked"), [(True, 10), (False, 50)])
def test_while_nobody_is_there_it_asks_again_soon(is_anybody_there: bool, num_asked: int) -> None:
    """In ten pauses: once in each, or every 0.2 s."""
    asked = []

    async def resolve(host: str, port: int) -> Collection[str]:
        asked.append(host)
        return ["10.0.0.1:7"]

    async def nobody_left() -> None:
        if is_anybody_there:
            await asyncio.Event().wait()

    async def run() -> None:
        following = follow("workers:7", resolve, 1.0, lambda found: None, lambda reason: None, nobody_left)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(following, 9.9)

    run_virtual(run())
    assert len(asked) == num_asked
