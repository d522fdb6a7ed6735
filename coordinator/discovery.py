"""From names to addresses: a name, such as that of a headless Service, stands for one worker per A or AAAA record."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Collection

from tandem.addresses import join_address, split_address
from tandem.rpc.serving import beside_the_loop

_LONGEST_S = 10.0
_HURRY_S = 0.2

Resolve = Callable[[str, int], Awaitable[Collection[str]]]  # host and port -> addresses; raises OSError


async def system_resolver(host: str, port: int) -> Collection[str]:
    """The addresses of a name now, as the system's resolver has them. Raises OSError, ValueError for no legal name."""
    found = await beside_the_loop(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return sorted({join_address(str(address[0]), port) for *_, address in found})


async def follow(
    name: str,
    resolve: Resolve,
    every_s: float,
    found: Callable[[Collection[str]], None],
    failed: Callable[[str], None],
    nobody_left: Callable[[], Awaitable[None]],
) -> None:
    """Resolves `name` again and again, and tells every answer, until cancelled. An answer without addresses is none.

    While there is nobody who takes work (`nobody_left()` returns), the next answer is not waited for as long.
    """
    host, port = split_address(name)
    while True:
        try:
            async with asyncio.timeout(_LONGEST_S):
                addresses = await resolve(host, port)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError; ValueError: no legal name
            failed(f"{host} does not resolve: {str(error) or 'no answer'}")
        else:
            found(addresses) if addresses else failed(f"{host} has no addresses")
        hurry_s = min(_HURRY_S, every_s)
        await asyncio.sleep(hurry_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(every_s - hurry_s):
                await nobody_left()
