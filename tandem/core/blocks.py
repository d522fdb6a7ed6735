"""Accounting of KV memory in blocks of tokens. No tensors here: a block is a number.

    free ──take──> used ──give──> free              a block without a name
                     └───give──> idle ──take──> used (its name is forgotten)
                                  └──share──> used  (its content is reused)

A block gets a name when it is full of committed tokens: then it is never written again, and may be shared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

ROOT = 0  # content id before the first block


@dataclass(frozen=True, slots=True)
class BlockName:
    """What a full block holds: its own tokens, and the content id of the block before it."""

    salt: Hashable
    parent: int
    tokens: tuple[int, ...]


class BlockPool:
    """Blocks 0..num_blocks-1. Takes are all or nothing; consecutive blocks are preferred, since a sequence whose blocks
    follow one another is read without a copy."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._is_free = bytearray(b"\x01" * num_blocks)
        self._num_free = num_blocks
        self._num_users = [0] * num_blocks
        self._idle: OrderedDict[int, None] = OrderedDict()  # named and unused, longest idle first
        self._by_name: dict[BlockName, int] = {}
        self._names: dict[int, tuple[BlockName, int]] = {}  # block -> name, content id
        self._last_content_id = ROOT

    @property
    def num_available(self) -> int:
        """Blocks that can be taken."""
        return self._num_free + len(self._idle)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def take(self, count: int, after: int | None = None) -> list[int] | None:
        """`count` blocks, those after block `after` if free; None, and nothing taken, if too few are available."""
        if count > self.num_available:
            return None
        if not count:
            return []
        while self._num_free < count:
            self._forget(next(iter(self._idle)))
        blocks = self._following(count, after) or self._run(count) or self._first(count)
        for block in blocks:
            self._is_free[block], self._num_users[block] = 0, 1
        self._num_free -= count
        return blocks

    def give(self, blocks: list[int]) -> None:
        """Ends one use of each block. Raises ValueError if one has no user."""
        for block in blocks:
            if not self._num_users[block]:
                raise ValueError(f"block {block} has no user")
            self._num_users[block] -= 1
            if self._num_users[block]:
                continue
            if block in self._names:
                self._idle[block] = None
            else:
                self._is_free[block] = 1
                self._num_free += 1

    def name(self, block: int, name: BlockName) -> int:
        """Says what a full block holds; returns the content id to name its successor by."""
        if name in self._by_name:  # another block has the same content: this one stays nameless
            return self._names[self._by_name[name]][1]
        self._last_content_id += 1
        self._by_name[name] = block
        self._names[block] = name, self._last_content_id
        return self._last_content_id

    def share(self, name: BlockName) -> tuple[int, int] | None:
        """A block with this content, one user more, and its content id; None if there is none."""
        block = self._by_name.get(name)
        if block is None:
            return None
        self._idle.pop(block, None)
        self._num_users[block] += 1
        return block, self._names[block][1]

    def check(self) -> None:
        """Raises ValueError unless every block is either free, or idle, or used."""
        for block in range(self.num_blocks):
            states = (bool(self._is_free[block]), block in self._idle, self._num_users[block] > 0)
            if sum(states) != 1:
                raise ValueError(f"block {block} is free, idle, used: {states}")
        if sum(self._is_free) != self._num_free:
            raise ValueError(f"{self._num_free} blocks counted free, {sum(self._is_free)} are")

    def num_users(self, block: int) -> int:
        return self._num_users[block]

    def _forget(self, block: int) -> None:
        """Makes an idle block free."""
        del self._idle[block]
        name, _ = self._names.pop(block)
        del self._by_name[name]
        self._is_free[block] = 1
        self._num_free += 1

    def _following(self, count: int, after: int | None) -> list[int] | None:
        if after is None or self._is_free[after + 1 : after + 1 + count] != b"\x01" * count:
            return None
        return list(range(after + 1, after + 1 + count))

    def _run(self, count: int) -> list[int] | None:
        start = self._is_free.find(b"\x01" * count)
        return None if start < 0 else list(range(start, start + count))

    def _first(self, count: int) -> list[int]:
        blocks = [-1]
        for _ in range(count):
            blocks.append(self._is_free.find(1, blocks[-1] + 1))
        return blocks[1:]
