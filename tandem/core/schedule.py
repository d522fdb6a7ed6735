"""Which rows run in the next forward pass."""

from __future__ import annotations

from collections.abc import Sequence


def share_step(pending: Sequence[int], max_rows: int, long_from: int) -> list[int]:
    """Rows each call gets in a step, given the rows it still has to feed. 0: it waits.

    Calls with fewer than `long_from` rows (decoding, verifying) go first and whole; prompts fill up what is left, in
    the order they came, cut into chunks. At least one call always gets rows.
    """
    shares = [0] * len(pending)
    left = max_rows
    by_length = sorted(range(len(pending)), key=lambda index: (pending[index] >= long_from, index))
    for index in by_length:
        shares[index] = min(pending[index], left)
        left -= shares[index]
    return shares
