"""Which rows run in the next forward pass."""

from __future__ import annotations

from collections.abc import Sequence

PROMPT_SHARE = 4  # of so many rows prompts get at least one


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
    of each that go together, since their logits do. The first of either kind always gets rows, a prompt its share of
    `max_rows`; where their tails do not fit, there are more than `max_rows`.
    """
    sizes, tails = sizes or pending, tails or [1] * len(pending)
    waiting = [index for index, rows in enumerate(pending) if rows]
    short = [index for index in waiting if sizes[index] < long_from]
    prompts = [index for index in waiting if sizes[index] >= long_from]
    least = [max(max_rows // PROMPT_SHARE, tail) for tail in tails]
    promised = sum(_without_part_of_tail(pending[index], least[index], tails[index]) for index in prompts[:1])
    shares = [0] * len(pending)
    for kind, kept in ((short, promised), (prompts, 0)):
        for index in kind:
            room = max_rows - kept - sum(shares)
            if index == kind[0]:
                room = max(room, least[index])
            shares[index] = _without_part_of_tail(pending[index], room, tails[index])
    return shares


def _without_part_of_tail(pending: int, room: int, tail: int) -> int:
    """As many rows as there is room for, but of the tail all or none."""
    return pending if pending <= room else max(min(room, pending - tail), 0)
