"""Medians of paired ratios and their intervals."""

from __future__ import annotations

import random

import pytest

from tandem.bench.paired import median_ratio


def test_pairs_cancel_what_both_sides_share() -> None:
    """Questions differ a thousandfold; each is answered twice as fast."""
    baseline = [10.0**exponent for exponent in range(-1, 3)]
    found = median_ratio([seconds / 2 for seconds in baseline], baseline)
    assert (found.median, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_interval_holds_the_median_and_is_the_same_each_time() -> None:
    rng = random.Random(1)
    seconds = [rng.uniform(1, 2) for _ in range(30)]
    found = median_ratio(seconds, [1.5] * 30)
    assert found.low < found.median < found.high
    assert found == median_ratio(seconds, [1.5] * 30)


def test_intervals_hold_the_true_median_about_as_often_as_they_say() -> None:
    rng = random.Random(2)
    trials = [median_ratio([2 ** rng.gauss(0, 0.3) for _ in range(25)], [1.0] * 25) for _ in range(200)]
    held = sum(found.low <= 1.0 <= found.high for found in trials)
    assert 176 <= held <= 199  # 95 of 100, by four standard errors; a bootstrap of medians is rough


def test_one_question_has_no_spread() -> None:
    found = median_ratio([2.0], [3.0])
    assert (found.median, found.low, found.high) == (1.5, 1.5, 1.5)
    assert str(found) == "1.50 [1.50, 1.50]"
