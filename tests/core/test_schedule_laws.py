"""Who runs in a step."""

from __future__ import annotations

import random

from tandem.core.schedule import share_step


def test_shares_keep_the_limit_and_leave_no_room_unused() -> None:
    rng = random.Random(0)
    for _ in range(5000):
        pending = [rng.choice([0, 1, 5, 17, 100]) for _ in range(rng.randrange(6))]
        max_rows = rng.randrange(1, 60)
        shares = share_step(pending, max_rows, 33)
        assert all(0 <= share <= rows for share, rows in zip(shares, pending, strict=True))
        assert sum(shares) == min(sum(pending), max_rows)


def test_short_calls_go_before_prompts() -> None:
    assert share_step([100, 5, 100, 1], 16, 33) == [10, 5, 0, 1]
    assert share_step([100], 16, 33) == [16]
    assert share_step([], 16, 33) == []


def test_every_call_is_served_in_a_bounded_number_of_steps() -> None:
    pending, steps = [70, 33, 40, 2, 9], 0
    while any(pending):
        pending = [rows - share for rows, share in zip(pending, share_step(pending, 8, 33), strict=True)]
        steps += 1
    assert steps == -(-(70 + 33 + 40 + 2 + 9) // 8)
