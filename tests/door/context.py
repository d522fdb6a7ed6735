"""A handler called as gRPC calls it, without gRPC."""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn

import grpc

from coordinator.door import Door


class Aborted(Exception):
    """What ends a handler that aborts its call."""


class FakeContext:
    """Remembers the status that a handler ends its call with."""

    def __init__(self, remaining_s: float | None = None) -> None:
        self.code = grpc.StatusCode.OK
        self.details = ""
        self._remaining_s = remaining_s

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        assert self.code is grpc.StatusCode.OK, "aborted twice"
        self.code, self.details = code, details
        raise Aborted

    def time_remaining(self) -> float | None:
        return self._remaining_s


async def answer_of(door: Door, message: bytes, context: FakeContext) -> list[Any]:
    """The chunks of one Generate call."""
    chunks = []
    with contextlib.suppress(Aborted):
        async with contextlib.aclosing(door._generate(message, context)) as answer:  # type: ignore[type-var]
            async for chunk in answer:
                chunks.append(chunk)
    return chunks
