"""One house for all tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from door.house import House, open_house


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened
