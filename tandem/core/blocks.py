"""Accounting of KV memory in blocks of tokens. No tensors here: a block is a number."""

from __future__ import annotations


class BlockPool:
    """Blocks 0..num_blocks-1, each free or used; takes are all or nothing.

    Consecutive blocks are preferred, since a sequence whose blocks follow one another is read without a copy.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        self._is_free = bytearray(b"\x01" * num_blocks)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def take(self, count: int, after: int | None = None) -> list[int] | None:
        """`count` blocks, those that follow block `after` if free; None, and nothing taken, if too few are free."""
        if count > self.num_free:
            return None
        blocks = self._following(count, after) or self._run(count) or self._first(count)
        for block in blocks:
            self._is_free[block] = 0
        self.num_free -= count
        return blocks

    def give(self, blocks: list[int]) -> None:
        """Frees `blocks`. Raises ValueError if one of them is free already."""
        for block in blocks:
            if self._is_free[block]:
                raise ValueError(f"block {block} is free already")
            self._is_free[block] = 1
        self.num_free += len(blocks)

    def check(self) -> None:
        """Raises ValueError unless free + used = total."""
        if sum(self._is_free) != self.num_free:
            raise ValueError(f"{self.num_free} blocks counted free, {sum(self._is_free)} are")

    def _following(self, count: int, after: int | None) -> list[int] | None:
        if after is None or self._is_free[after + 1 : after + 1 + count] != b"\x01" * count:
            return None
        return list(range(after + 1, after + 1 + count))

    def _run(self, count: int) -> list[int] | None:
        start = self._is_free.find(b"\x01" * count)
        return None if start < 0 else list(range(start, start + count))

    def _first(self, count: int) -> list[int]:
        return [block for block in range(self.num_blocks) if self._is_free[block]][:count]
