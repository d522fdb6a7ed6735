"""Which rows run in the next forward pass."""

from __future__ import annotations

from collections.abc import Sequence


def share_step(
    pending: Sequence[int],
    max_rows: int,
    long_from: int,
    sizes: Sequence[int] = (),
    tails: Sequence[int] = (),
) -> list[int]:
    """Rows each call gets in a step, given the rows it still has to feed. 0: it waits.

    `sizes`: rows each had to feed at first, if some are fed already. Calls with fewer than `long_from` (decoding,
    verifying) go first; prompts fill up what is left, in the order they came, cut into chunks. `tails`: rows at the end
    of each that go together, since their logits do. One call always gets rows, if need be more than `max_rows`.
    """
    sizes, tails = sizes or pending, tails or [1] * len(pending)
    shares = [0] * len(pending)
    left = max_rows
    in_order = sorted(range(len(pending)), key=lambda index: (sizes[index] >= long_from, index))
    for index in in_order:
        shares[index] = _without_part_of_tail(pending[index], left, tails[index])
        left -= shares[index]
    if left == max_rows:
        first = next((index for index in in_order if pending[index]), None)
        if first is not None:
            shares[first] = pending[first]
    return shares


def _without_part_of_tail(pending: int, left: int, tail: int) -> int:
    """As many rows as are left for it, but of its tail all or none."""
    return pending if pending <= left else min(left, max(pending - tail, 0))
