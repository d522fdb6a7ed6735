"""Who leaves a stream, or is out of time, ends the call on the server too, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from types import FrameType
from typing import NoReturn

import grpc
import pytest
from harness.waiting import assert_eventually

from tandem.client import Cancelled, Client, ClientClosed, DeadlineExceeded, Retry

from .asking import Asking, async_client, sync_client
from .fakes import NUM_CHUNKS, TEXT, BreaksAfter, Coordinator, HangsAfter, Slow, Unready, serving

WITHIN_S = 10.0


def test_leaving_a_for_loop_ends_the_call() -> None:
    coordinator = HangsAfter(2)
    with serving(coordinator) as address, sync_client(address) as client:
        for _ in client.stream("Why?"):
            break
        assert coordinator.ended.wait(WITHIN_S)
        assert client.status().model == "tiny"  # the client is as good as before


def test_closing_a_generator_ends_the_call() -> None:
    coordinator = HangsAfter(2)
    with serving(coordinator) as address, sync_client(address) as client:
        chunks = client.stream("Why?")
        next(chunks)
        chunks.close()
        assert coordinator.ended.wait(WITHIN_S)
        chunks.close()


def test_an_error_in_the_loop_ends_the_call() -> None:
    coordinator = HangsAfter(1)
    with serving(coordinator) as address, sync_client(address) as client:
        with pytest.raises(ZeroDivisionError):
            for chunk in client.stream("Why?"):
                _ = 1 // chunk.offset
        assert coordinator.ended.wait(WITHIN_S)


def begun_ring(client: Client) -> list[object]:
    """A stream that has begun, in a list that only the collector can find once it is forgotten."""
    chunks = client.stream("Why?")
    ring: list[object] = [chunks]
    ring.append(ring)
    next(chunks)
    return ring


def test_a_forgotten_generator_ends_the_call() -> None:
    """Also one that only the collector finds, in whatever thread that runs."""
    coordinator = HangsAfter(1)
    with serving(coordinator) as address, sync_client(address) as client:
        ring = begun_ring(client)
        del ring
        gc.collect()
        assert coordinator.ended.wait(WITHIN_S)


def test_the_collector_does_not_end_what_the_loop_ends() -> None:
    """It would end the inner generators of a forgotten stream while the loop's thread is in the midst of them."""
    coordinator = HangsAfter(1)
    with serving(coordinator) as address, sync_client(address) as client:
        ring = begun_ring(client)
        loop, collected = client._thread._loop, threading.Event()
        before = len(loop._asyncgens)  # type: ignore[attr-defined]  # one that is to be ended leaves them
        loop.call_soon_threadsafe(collected.wait, WITHIN_S)
        del ring
        gc.collect()
        assert len(loop._asyncgens) == before > 0  # type: ignore[attr-defined]
        collected.set()
        assert coordinator.ended.wait(WITHIN_S)
    assert not client._thread.kept


def test_an_interrupt_ends_the_call() -> None:
    """Ctrl-C comes while the thread waits for the next chunk."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    coordinator = HangsAfter(1)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with serving(coordinator) as address, sync_client(address) as client:
            with pytest.raises(KeyboardInterrupt):
                for _ in client.stream("Why?"):
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert coordinator.ended.wait(WITHIN_S)
            coordinator.ended.clear()
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                client.generate("Why?")
            assert coordinator.ended.wait(WITHIN_S)
    finally:
        signal.signal(signal.SIGALRM, before)


async def test_leaving_an_async_for_loop_ends_the_call() -> None:
    coordinator = HangsAfter(2)
    with serving(coordinator) as address:
        async with async_client(address) as client:
            before = asyncio.all_tasks()
            async for _ in client.stream("Why?"):
                break
            await assert_eventually(coordinator.ended.is_set)
            await assert_eventually(lambda: asyncio.all_tasks() <= before)
            assert (await client.status()).model == "tiny"


async def test_closing_an_async_generator_ends_the_call() -> None:
    coordinator = HangsAfter(2)
    with serving(coordinator) as address:
        async with async_client(address) as client:
            async with aclosing(client.stream("Why?")) as chunks:
                await anext(chunks)
            await assert_eventually(coordinator.ended.is_set)


@pytest.mark.parametrize("num_chunks", [0, 1])
async def test_cancelling_the_task_ends_the_call(num_chunks: int) -> None:
    coordinator = HangsAfter(num_chunks)
    with serving(coordinator) as address:
        async with async_client(address) as client:
            task = asyncio.create_task(client.generate("Why?"))
            await assert_eventually(lambda: coordinator.requests)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await assert_eventually(coordinator.ended.is_set)


async def test_a_timeout_of_the_caller_stays_one() -> None:
    with serving(HangsAfter(1)) as address:
        async with async_client(address) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.generate("Why?")


@pytest.mark.parametrize("num_chunks", [0, 2])
def test_silence_ends_at_the_deadline(ask: Asking, num_chunks: int) -> None:
    coordinator = HangsAfter(num_chunks)
    with serving(coordinator) as address, pytest.raises(DeadlineExceeded):
        ask.generate(address, prompt="Why?", timeout_s=0.5)
    assert coordinator.ended.wait(WITHIN_S)
    assert len(coordinator.requests) == 1


def test_the_deadline_is_for_the_whole_not_for_a_chunk(ask: Asking) -> None:
    with serving(Slow(0.3)) as address, pytest.raises(DeadlineExceeded):
        ask.generate(address, prompt="Why?", timeout_s=0.8)


def test_slow_is_not_silent(ask: Asking) -> None:
    with serving(Slow(0.05)) as address:
        assert ask.generate(address, prompt="Why?", timeout_s=20).text == TEXT


def test_a_finish_is_the_end_whatever_follows(ask: Asking) -> None:
    coordinator = HangsAfter(NUM_CHUNKS)
    with serving(coordinator) as address:
        assert ask.generate(address, prompt="Why?").text == TEXT
    assert coordinator.ended.wait(WITHIN_S)


def test_a_finished_request_is_not_cancelled(ask: Asking) -> None:
    """Its status must come out as OK on the server's side."""

    class Lingers(Coordinator):
        cancelled: bool | None = None

        def tell(self, request, context):  # type: ignore[no-untyped-def]
            yield from super().tell(request, context)
            self.cancelled = self.ended.wait(0.2)

    coordinator = Lingers()
    with serving(coordinator) as address:
        ask.generate(address, prompt="Why?")
        assert coordinator.ended.wait(WITHIN_S)
    assert coordinator.cancelled is False


def test_a_stream_begins_when_iterated() -> None:
    coordinator = Coordinator()
    with serving(coordinator) as address, sync_client(address) as client:
        client.stream("Why?").close()
        assert not coordinator.requests


def test_a_stream_keeps_its_client() -> None:
    with serving(Coordinator()) as address:
        assert "".join(chunk.text for chunk in Client(address).stream("Why?")) == TEXT


def test_many_threads_share_a_client() -> None:
    coordinator = Slow(0.001)
    with serving(coordinator) as address, sync_client(address) as client, ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: client.generate("Why?").text, range(32)))
    assert texts == [TEXT] * 32


@pytest.mark.parametrize("retrying", [False, True])
def test_closing_ends_what_other_threads_wait_for(retrying: bool) -> None:
    coordinator = Unready(99) if retrying else HangsAfter(1)
    with serving(coordinator) as address, ThreadPoolExecutor(1) as pool:
        with sync_client(address, retry=Retry(first_pause_s=60, longest_pause_s=60)) as client:
            future = pool.submit(client.generate, "Why?")
            asyncio.run(assert_eventually(lambda: coordinator.requests))
            began_s = time.monotonic()
            client.close()
            client.close()
        with pytest.raises(ClientClosed):
            future.result(WITHIN_S)
        assert time.monotonic() - began_s < WITHIN_S


async def test_closing_ends_what_other_tasks_wait_for() -> None:
    coordinator = HangsAfter(1)
    with serving(coordinator) as address:
        async with async_client(address) as client:
            task = asyncio.create_task(client.generate("Why?", request_id="mine"))
            await assert_eventually(lambda: coordinator.requests)
            await client.close()
            await client.close()
            with pytest.raises(ClientClosed) as caught:
                await task
        assert caught.value.request_id == "mine"
        await assert_eventually(coordinator.ended.is_set)


def test_a_closed_client_says_so() -> None:
    with serving(Coordinator()) as address:
        with sync_client(address) as client:
            chunks = client.stream("Why?")
            next(chunks)
        for ask in (lambda: client.generate("Why?"), client.status, lambda: next(chunks)):
            with pytest.raises(ClientClosed):
                ask()
        chunks.close()


async def test_a_closed_async_client_says_so() -> None:
    with serving(Coordinator()) as address:
        async with async_client(address) as client:
            await client.status()
        for ask in (client.generate("Why?"), client.status()):
            with pytest.raises(ClientClosed):
                await ask


async def test_cancelled_by_the_server_is_an_error_not_a_cancellation() -> None:
    with serving(BreaksAfter(1, 9, grpc.StatusCode.CANCELLED)) as address:
        async with async_client(address) as client:
            with pytest.raises(Cancelled):
                await client.generate("Why?")


async def test_leaving_a_hundred_times_leaves_nothing() -> None:
    coordinator = Slow(0.001)
    with serving(coordinator) as address:
        async with async_client(address) as client:
            await client.status()
            before = asyncio.all_tasks()
            for number in range(100):
                async with aclosing(client.stream("Why?")) as chunks:
                    for _ in range(number % (NUM_CHUNKS + 1)):
                        await anext(chunks)
            await assert_eventually(lambda: asyncio.all_tasks() <= before)
            await assert_eventually(lambda: coordinator.num_ended == len(coordinator.requests))
