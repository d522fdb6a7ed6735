"""The way itself: what is held arrives late and whole, what is cut is lost, and the port stays the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from harness.waiting import assert_eventually
from harness.way import HOST, Way


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[Way]:
    """A way to a server that sends back what it gets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(100):
                writer.write(piece)
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, HOST, 0)
    way = Way(lambda: int(server.sockets[0].getsockname()[1]))
    await way.open()
    async with server:
        yield way
        await way.close()


async def connect(way: Way) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(HOST, way.port)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_what_is_sent_arrives_and_ends_arrive_too() -> None:
    async with echo() as way:
        reader, writer = await connect(way)
        writer.write(b"hello" * 100)
        writer.write_eof()
        assert await reader.read(-1) == b"hello" * 100
        await close(writer)


async def test_what_is_held_arrives_after_the_release_in_order() -> None:
    async with echo() as way:
        reader, writer = await connect(way)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        way.hold()
        writer.write(b"b")
        await assert_eventually(lambda: way.num_held == 1)
        late = asyncio.create_task(reader.readexactly(2))
        writer.write(b"c")
        way.release()
        assert await late == b"bc"
        await close(writer)


async def test_a_connection_that_is_made_while_the_way_is_held_waits() -> None:
    async with echo() as way:
        way.hold()
        reader, writer = await connect(way)
        writer.write(b"a")
        await assert_eventually(lambda: way.num_held == 1)
        way.release()
        assert await reader.readexactly(1) == b"a"
        await close(writer)


async def test_a_caller_that_has_gone_is_heard_out() -> None:
    """Its calls, sent before it left, arrive when the way is free: late calls of a dead stream."""
    async with echo() as way:
        reader, writer = await connect(way)
        way.hold()
        writer.write(b"late")
        await assert_eventually(lambda: way.num_held == 1)
        writer.write_eof()
        way.release()
        assert await reader.read(-1) == b"late"
        await close(writer)


async def test_a_cut_ends_every_connection_and_refuses_new_ones_until_it_is_opened_again() -> None:
    async with echo() as way:
        reader, writer = await connect(way)
        await assert_eventually(lambda: way.num_connections == 1)
        way.hold()
        writer.write(b"lost")
        await assert_eventually(lambda: way.num_held == 1)
        port = way.port
        way.cut()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(-1) == b""
        await close(writer)
        with pytest.raises(ConnectionRefusedError):
            await connect(way)
        await way.open()
        assert way.port == port
        reader, writer = await connect(way)
        writer.write(b"anew")
        assert await reader.readexactly(4) == b"anew"
        await close(writer)
