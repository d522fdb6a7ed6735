"""When a failing draft worker is left alone, and when it is tried again. Family I94."""

from __future__ import annotations

from coordinator.breaker import Breaker


def opened(pause_s: float = 1.0) -> Breaker:
    breaker = Breaker(pause_s)
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


def test_after_the_pause_one_try_is_let_through_and_no_other() -> None:
    breaker = opened()
    assert breaker.allows(1.0)
    assert not breaker.allows(1.0) and not breaker.allows(1.9)


def test_a_try_that_says_nothing_does_not_close_it_for_ever() -> None:
    breaker = opened()
    assert breaker.allows(1.0)
    assert breaker.allows(2.0), "its outcome was never told"


def test_success_of_the_try_closes_it() -> None:
    breaker = opened()
    assert breaker.allows(1.0)
    breaker.succeeded()
    assert breaker.allows(1.0) and breaker.allows(1.0)


def test_the_pause_doubles_up_to_its_limit() -> None:
    breaker, now, pauses = Breaker(1.0, longest_pause_s=10.0), 0.0, []
    for _ in range(12):
        breaker.failed(now)
    for _ in range(3):
        began = now
        while not breaker.allows(now):
            now += 0.5
        pauses.append(now - began)
        breaker.failed(now)
    assert pauses == [10.0, 10.0, 10.0]
