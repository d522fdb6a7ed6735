"""Who runs in a step."""

from __future__ import annotations

import random

from tandem.core.schedule import PROMPT_SHARE, share_step

LONG = 33


def test_shares_keep_the_limit_and_leave_no_room_unused() -> None:
    rng = random.Random(0)
    for _ in range(5000):
        pending = [rng.choice([0, 1, 5, 17, 100]) for _ in range(rng.randrange(6))]
        max_rows = rng.randrange(17, 60)
        shares = share_step(pending, max_rows, LONG)
        assert all(0 <= share <= rows for share, rows in zip(shares, pending, strict=True))
        assert sum(shares) == min(sum(pending), max_rows)


def test_the_first_call_of_either_kind_goes_on_in_every_step() -> None:
    """Neither decoding nor prompts can fill all steps alone, however small these are and whatever goes together."""
    rng = random.Random(0)
    for _ in range(5000):
        sizes = [rng.choice([1, 5, 17, 40, 100]) for _ in range(rng.randrange(1, 40))]
        pending = [rng.randrange(size + 1) for size in sizes]
        tails = [rng.randrange(1, min(rows, 17) + 1) if rows else 1 for rows in pending]
        max_rows = rng.randrange(1, 60)
        shares = share_step(pending, max_rows, LONG, sizes, tails)
        assert all(0 <= share <= rows for share, rows in zip(shares, pending, strict=True))
        firsts = []
        for is_prompt in (False, True):
            firsts += [index for index, rows in enumerate(pending) if rows and (sizes[index] >= LONG) == is_prompt][:1]
        assert all(shares[index] for index in firsts)
        assert sum(shares) <= max(max_rows, sum(max(tails[index], max_rows // PROMPT_SHARE) for index in firsts))


def test_prompts_have_a_share_that_decoding_cannot_take() -> None:
    for max_rows in range(1, 100):
        shares = share_step([5] * 100 + [1000], max_rows, LONG, tails=[5] * 100 + [1])
        assert shares[-1] >= max(1, max_rows // PROMPT_SHARE)
        assert sum(shares[:-1]) >= max(5, max_rows - max_rows // PROMPT_SHARE - 4)


def test_short_calls_go_before_prompts() -> None:
    assert share_step([100, 5, 100, 1], 16, LONG) == [10, 5, 0, 1]
    assert share_step([100], 16, LONG) == [16]
    assert share_step([], 16, LONG) == []


def test_every_call_is_served_in_a_bounded_number_of_steps() -> None:
    pending, steps = [70, 33, 40, 2, 9], 0
    while any(pending):
        pending = [rows - share for rows, share in zip(pending, share_step(pending, 8, LONG), strict=True)]
        steps += 1
    assert steps == -(-(70 + 33 + 40 + 2 + 9) // 8)
