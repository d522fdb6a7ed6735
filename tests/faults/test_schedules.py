"""Random schedules of all faults: no history breaks an invariant. 300 without one bound the rate below 1 in 100."""

from __future__ import annotations

import pytest

from faults.campaign import Outcome, as_markdown, outcome_of, recovery_s, rows_of
from faults.history import Asked, Came, Ended, Struck
from faults.invariants import violations
from faults.schedule import make_schedule, run
from faults.strikes import STRIKES
from tandem.client.request import Request

NUM_SCHEDULES, NUM_ALWAYS = 300, 6


def _schedules() -> list[object]:
    last = NUM_ALWAYS + NUM_SCHEDULES
    return [*range(NUM_ALWAYS), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(NUM_ALWAYS, last))]


@pytest.mark.parametrize("seed", _schedules())
async def test_a_schedule_breaks_no_invariant(seed: int) -> None:
    history = await run(make_schedule(seed))
    assert violations(history.events) == []


def test_schedules_are_made_of_their_seeds_and_hold_every_fault() -> None:
    schedules = [make_schedule(seed) for seed in range(NUM_SCHEDULES)]
    assert schedules == [make_schedule(seed) for seed in range(NUM_SCHEDULES)]
    assert {planned.fault for schedule in schedules for planned in schedule.faults} == set(STRIKES)


async def test_a_client_that_forgets_what_it_had_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker sees a real fault of fail-over: a resumption that takes the last token for not received."""
    going_on = Request.going_on
    monkeypatch.setattr(Request, "going_on", lambda self, start, output: going_on(self, start, output[:-1]))
    killed = next(
        schedule
        for schedule in map(make_schedule, range(NUM_SCHEDULES))
        if [planned.fault for planned in schedule.faults] == ["coordinator killed"] and schedule.faults[0].after > 8
    )
    assert any("I3" in violation for violation in violations((await run(killed)).events))


def test_recovery_is_the_longest_wait_of_a_request_that_ran() -> None:
    struck = Struck("target killed", 10.0)
    events = [
        Asked("ended", 1, None, 9.0, 1.0), Asked("quick", 2, None, 9.0, 2.0), Asked("slow", 2, None, 9.0, 3.0),
        Ended("ended", "OK", 9.0), struck, Asked("later", 1, None, 9.0, 10.5), Came("quick", 0, (1,), 11.0),
        Came("slow", 0, (1,), 13.0), Came("later", 0, (1,), 19.0), Came("slow", 1, (1,), 20.0),
    ]  # fmt: skip
    assert recovery_s(struck, events) == 3.0
    assert recovery_s(struck, [*events[:1], events[3], struck]) is None


def test_the_table_counts_every_run_and_every_failure() -> None:
    outcomes = [
        Outcome(1, [], [("a", 0.5), ("b", None)]),
        Outcome(2, ["I1: r0"], [("a", 1.5)]),
        Outcome(3, [], [("a", 1.0)]),
    ]
    rows = rows_of(outcomes)
    assert (rows["a"].runs, rows["a"].failed, rows["a"].median_s, rows["a"].longest) == (3, 1, 1.0, (1.5, 2))
    assert (rows["b"].runs, rows["b"].failed, rows["b"].recoveries) == (1, 0, [])
    assert "| a | 3 | 1 | 1.00 | 1.50 | 2 |" in as_markdown(outcomes)


def test_an_outcome_names_its_faults() -> None:
    """As the campaign runs it, in a loop of its own."""
    outcome = outcome_of(0)
    assert (outcome.seed, outcome.violations) == (0, [])
    assert [fault for fault, _ in outcome.faults] == [planned.fault for planned in make_schedule(0).faults]
