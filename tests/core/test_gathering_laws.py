"""Steps wait for those who are about to come back: only while that pays, never long, never for who has left."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.gathering import Gathering

STEP_S = 1.0
Away = Callable[[int], float]  # session -> how long it is away between an answer and its next call


class Device:
    """A step loop by a fake clock: takes what has come, waits as it is told to, steps."""

    def __init__(
        self, arrivals: dict[int, float], away: Away, step_s: Callable[[int], float] = lambda n: STEP_S
    ) -> None:
        self.gathering, self.now_s = Gathering(), 0.0
        self.steps: list[set[int]] = []
        self.waits_s: list[float] = []  # before each step, while somebody was ready
        self._coming, self._ready = dict(arrivals), set[int]()
        self._away, self._step_s = away, step_s

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._take()
            if not self._ready:
                self._sleep_until(min(self._coming.values()))
            began_s = self.now_s
            while wait_s := self.gathering.wait_s(len(self._ready), self.now_s):
                until_s, next_s = self.now_s + wait_s, min(self._coming.values(), default=float("inf"))
                self._sleep_until(min(until_s, next_s))
                if next_s > until_s:
                    break
            self.waits_s.append(self.now_s - began_s)
            self._step()

    def _sleep_until(self, when_s: float) -> None:
        self.now_s = max(self.now_s, when_s)
        self._take()

    def _take(self) -> None:
        for session, when_s in [each for each in self._coming.items() if each[1] <= self.now_s]:
            del self._coming[session]
            self.gathering.returned(session, when_s)
            self._ready.add(session)

    def _step(self) -> None:
        began_s, stepped, self._ready = self.now_s, self._ready, set()
        self.now_s += self._step_s(len(stepped))
        self.gathering.stepped(stepped, began_s, self.now_s)
        self.steps.append(stepped)
        self._coming |= {session: self.now_s + self._away(session) for session in stepped}


@given(st.lists(st.floats(0.001, 5.0), min_size=1, max_size=40))
def test_who_is_alone_never_waits(times_away_s: list[float]) -> None:
    times = iter(times_away_s)
    device = Device({0: 0.0}, lambda session: next(times))
    device.run(len(times_away_s))
    assert not any(device.waits_s)


@given(st.integers(2, 40), st.floats(0.01, 0.3), st.integers(0, 1000).map(random.Random))
def test_sessions_that_come_back_soon_end_up_in_one_step(num: int, away_s: float, draw: random.Random) -> None:
    """However they began, and though they never come back in one moment."""
    arrivals = {session: draw.uniform(0.0, 3 * STEP_S) for session in range(num)}
    device = Device(arrivals, lambda session: away_s * draw.uniform(0.9, 1.1))
    device.run(60)
    full = sum(len(step) == num for step in device.steps[30:])
    assert full >= 25, [len(step) for step in device.steps]


@given(st.integers(1, 20), st.floats(0.7, 1.9), st.integers(0, 1000).map(random.Random))
def test_two_halves_that_fill_one_anothers_absence_are_left_alone(
    half: int, away_s: float, draw: random.Random
) -> None:
    """Away for most of a step: a device that waited for them would stand still in vain."""
    arrivals = {session: 0.0 if session < half else STEP_S / 2 for session in range(2 * half)}
    device = Device(arrivals, lambda session: away_s * draw.uniform(0.98, 1.02))
    device.run(60)
    late = [wait_s for wait_s in device.waits_s[20:] if wait_s]
    assert sum(late) <= 0.05 * 40 * STEP_S


@given(
    st.dictionaries(st.integers(0, 20), st.floats(0.0, 5.0), min_size=1),
    st.floats(0.001, 4.0),
    st.integers(0, 1000).map(random.Random),
)
def test_a_ready_call_never_waits_for_as_long_as_a_step(
    arrivals: dict[int, float], away_s: float, draw: random.Random
) -> None:
    device = Device(arrivals, lambda session: draw.expovariate(1 / away_s))
    device.run(80)
    assert max(device.waits_s) < STEP_S


def test_who_stays_away_is_waited_for_once() -> None:
    """It is in the first steps, and then says nothing more: neither a release nor a call."""
    num_calls = dict.fromkeys(range(8), 0)

    def away(session: int) -> float:
        num_calls[session] += 1
        return 1e9 if session == 0 and num_calls[0] == 20 else 0.1 + session / 1000

    device = Device(dict.fromkeys(range(8), 0.0), away)
    device.run(200)
    last = max(index for index, step in enumerate(device.steps) if 0 in step)
    assert last < 30 and all(len(step) == 7 for step in device.steps[last + 20 :])
    usual_s = 0.1 + 7 / 1000  # what it takes the others to come back
    assert sum(max(wait_s - usual_s, 0.0) for wait_s in device.waits_s[last + 1 :]) < STEP_S


def one_away() -> Gathering:
    """A session that always comes back in a tenth of a step is away since 21."""
    gathering = Gathering()
    for now_s in range(0, 20, 2):
        gathering.stepped([2], now_s, now_s + STEP_S)
        gathering.returned(2, now_s + STEP_S + 0.1)
    gathering.stepped([2], 20.0, 20.0 + STEP_S)
    return gathering


def test_the_rest_of_the_usual_time_is_waited_for_who_is_due() -> None:
    assert one_away().wait_s(1, 21.05) == pytest.approx(0.05)


def test_nobody_waits_for_who_has_left_is_back_or_is_late() -> None:
    ended, back = one_away(), one_away()
    ended.ended(2)
    back.returned(2, 21.06)
    assert ended.wait_s(1, 21.05) == back.wait_s(2, 21.06) == 0.0
    assert one_away().wait_s(1, 21.2) == 0.0


def test_many_do_not_wait_for_one_unless_it_is_about_to_come() -> None:
    gathering = one_away()
    assert gathering.wait_s(30, 21.05) == 0.0  # 30 x 50 ms are more than the one would lose
    assert gathering.wait_s(30, 21.09) == pytest.approx(0.01)


@given(st.floats(0.01, 0.99), st.integers(1, 50), st.integers(1, 50))
def test_waiting_pays_for_all_together(away_s: float, num_ready: int, num_away: int) -> None:
    """n r < m (s - r): what the ready lose is less than what the others would."""
    gathering = Gathering()
    for now_s in range(0, 100, 10):
        gathering.stepped(range(num_away), now_s, now_s + STEP_S)
        for session in range(num_away):
            gathering.returned(session, now_s + STEP_S + away_s)
    gathering.stepped(range(num_away), 200.0, 200.0 + STEP_S)
    lost_s, saved_s = num_ready * away_s, num_away * (STEP_S - away_s)
    waits = gathering.wait_s(num_ready, 200.0 + STEP_S) > 0
    assert waits == (lost_s < saved_s) or lost_s == pytest.approx(saved_s)
