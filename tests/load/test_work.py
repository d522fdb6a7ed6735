"""Family "the work of a call grows with what else is there": with memory to spare, a call looks at neither the pool's
other blocks nor the other sessions.
"""

from __future__ import annotations

from typing import Any

import pytest

from tandem.core.blocks import BlockPool
from tandem.core.prefix import TokenList, state_prefix
from tandem.core.sessions import Admitted, SessionTable
from tandem.core.types import Block, Call, Rule, Verify

BLOCK_SIZE = 4


class Watched(bytearray):
    """Says how many of its bytes were looked at one by one."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_read += 1 if isinstance(index, int) else len(range(*index.indices(len(self))))
        return super().__getitem__(index)


class WatchedSessions(dict[bytes, Any]):
    """Says how often all of them were gone through."""

    num_walks = 0

    def values(self) -> Any:
        self.num_walks += 1
        return super().values()


def verify(name: int, number: int, num_tokens: int) -> Verify:
    call = Call(name.to_bytes(16, "big"), number, number, Rule.GREEDY, 64)
    return Verify(call, state_prefix(TokenList(range(num_tokens)), (), 2, 0), Block(), None)


@pytest.mark.parametrize("num_blocks", [256, 65_536])
@pytest.mark.parametrize("num_tokens", [3, 4, 9])
def test_a_call_looks_at_its_own_blocks_alone(num_blocks: int, num_tokens: int) -> None:
    """Whether it needs none, one, or some more than it has."""
    table = SessionTable(BlockPool(num_blocks, BLOCK_SIZE))
    assert isinstance(table.admit(verify(1, 1, 2), 1, "stream", 0.0), Admitted)
    watched = table.pool._is_free = Watched(table.pool._is_free)
    assert isinstance(table.admit(verify(1, 2, num_tokens), 1, "stream", 0.0), Admitted)
    assert watched.num_read <= 8


def test_a_call_looks_at_no_other_session() -> None:
    table = SessionTable(BlockPool(1024, BLOCK_SIZE))
    for name in range(100):
        assert isinstance(table.admit(verify(name, 1, 3), 1, "stream", 0.0), Admitted)
    watched = table.sessions = WatchedSessions(table.sessions)
    assert isinstance(table.admit(verify(7, 2, 9), 1, "stream", 0.0), Admitted)
    assert watched.num_walks == 0


@pytest.mark.parametrize("taken", [(), (0,), (1, 3), (0, 1, 2, 4)])
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_a_take_gives_free_blocks_however_they_lie(taken: tuple[int, ...], count: int) -> None:
    pool = BlockPool(8, BLOCK_SIZE)
    held = pool.take(8) or []
    pool.give([block for block in held if block not in taken])
    blocks = pool.take(count)
    assert blocks is not None and len(set(blocks)) == count and not set(blocks) & set(taken)
    pool.check()
