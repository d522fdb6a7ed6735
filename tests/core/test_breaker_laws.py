"""When a failing worker is left alone, and when it is tried again. Family I94."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from tandem.core.breaker import Breaker


def opened(pause_s: float = 1.0) -> Breaker:
    breaker = Breaker(pause_s, longest_pause_s=10.0)
    for _ in range(3):
        assert breaker.allows(0.0)
        breaker.failed(0.0)
    return breaker


def test_three_failures_in_a_row_open_it_and_a_success_between_does_not() -> None:
    assert not opened().allows(0.5)
    breaker = Breaker(1.0)
    for _ in range(5):
        breaker.failed(0.0)
        breaker.failed(0.0)
        breaker.succeeded()
    assert breaker.allows(0.0)


def test_to_ask_changes_nothing() -> None:
    breaker = opened()
    assert all(breaker.allows(1.0) for _ in range(3))


def test_after_the_pause_one_try_goes_through_and_no_other() -> None:
    breaker = opened()
    assert breaker.allows(1.0)
    breaker.trying(1.0)
    assert not breaker.allows(1.0) and not breaker.allows(1.9)


def test_a_try_whose_outcome_is_never_told_does_not_keep_others_out_for_ever() -> None:
    breaker = opened()
    breaker.trying(1.0)
    assert breaker.allows(2.0)


def test_success_of_the_try_closes_it() -> None:
    breaker = opened()
    breaker.trying(1.0)
    breaker.succeeded()
    assert breaker.allows(1.0)
    breaker.failed(1.0)
    breaker.failed(1.0)
    assert breaker.allows(1.0), "failures from before it closed are forgotten"


@pytest.mark.parametrize("num_late", [1, 5, 100])
def test_calls_that_were_under_way_when_it_opened_do_not_prolong_the_pause(num_late: int) -> None:
    breaker = opened()
    for _ in range(num_late):
        breaker.failed(0.5)
    assert not breaker.allows(0.9) and breaker.allows(1.0)


def test_no_pause_is_shorter_than_the_first() -> None:
    breaker = Breaker(50.0, longest_pause_s=10.0)
    for _ in range(3):
        breaker.failed(0.0)
    breaker.trying(50.0)
    breaker.failed(50.0)
    assert not breaker.allows(99.0) and breaker.allows(100.0)


def test_the_pause_doubles_with_every_failed_try_up_to_its_limit() -> None:
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(6):
        began = now
        while not breaker.allows(now):
            now += 0.5
        pauses.append(now - began)
        breaker.trying(now)
        breaker.failed(now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_closed_it_keeps_nobody_out_whatever_began() -> None:
    """Every order of up to five beginnings, failures and successes with fewer than three failures in a row."""
    for events in itertools.product("tfs", repeat=5):
        if "fff" not in "".join(events).replace("t", ""):
            breaker = Breaker(1.0)
            happens = {"t": partial(breaker.trying, 0.0), "f": partial(breaker.failed, 0.0), "s": breaker.succeeded}
            for event in events:
                happens[event]()
                assert breaker.allows(0.0)
