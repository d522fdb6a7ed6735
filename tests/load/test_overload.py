"""Family "overload": at ten times what the system can carry, finished work stays at its peak, queues stay bounded, and
what a request leaves behind is next to nothing. In virtual time: tokens are counted, no clock is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import pytest
from families.desk import Ask, Desk, at_desk
from families.models import LETTERS
from harness.scripted import whole_history

from coordinator.admission import Admission
from tandem.errors import Overloaded

pytestmark = pytest.mark.timeout(600)  # they compute all the time

V = len(LETTERS)
TARGET, DRAFT = whole_history(V, seed=1), whole_history(V, seed=1, mistakes=0.2)
SECONDS = 2.0  # virtual
TARGET_STEP_S, DRAFT_STEP_S = 0.01, 0.001
PAUSE_S = 0.2  # of a refused client, which comes back far sooner than it was told
MAX_TOKENS = 16
TIMES_TOO_MUCH = 10
SLOTS = {"max_running": 8, "max_waiting": 16}  # short: requests that may run
ROOM = {"max_running": 32, "max_waiting": 16}  # short: memory, for 5 requests of LONG tokens
LONG = 64


@dataclass
class Count:
    """What came of the requests of one load, and how far the queues went."""

    num_finished_tokens: int = 0
    num_finished: int = 0
    num_refused: int = 0
    most_waiting: int = 0
    most_running: int = 0
    bytes_in_use: list[int] = field(default_factory=list)  # in the middle, and at the end


async def load(desk: Desk, num_clients: int, max_tokens: int, seconds: float = SECONDS) -> Count:
    """Clients that ask again as soon as they are answered, or a little after they were refused."""
    loop, count = asyncio.get_running_loop(), Count()
    until, admission = loop.time() + seconds, desk.service._admission

    async def keep_asking(number: int) -> None:
        turn = 0
        while loop.time() < until:
            turn += 1
            answer = None
            with contextlib.suppress(Overloaded):  # and with it what the error's frames hold
                answer = await desk.ask(Ask(prompt=(number % V, turn % V, 3), max_tokens=max_tokens, k=3))
            if answer is None:
                count.num_refused += 1
                await asyncio.sleep(PAUSE_S)
            elif loop.time() < until:
                count.num_finished += 1
                count.num_finished_tokens += len(answer.ids)

    async def watch() -> None:
        for half in range(2):
            while loop.time() < until - seconds * (1 - half) / 2:
                note_queues(count, admission)
                await asyncio.sleep(TARGET_STEP_S)
            forget(desk)
            gc.collect()
            count.bytes_in_use.append(tracemalloc.get_traced_memory()[0])

    await asyncio.gather(watch(), *(keep_asking(number) for number in range(num_clients)))
    return count


def forget(desk: Desk) -> None:
    """What the carriers have written down for other tests."""
    for carrier in desk.carriers:
        carrier.items.clear()
        carrier.steps.clear()
        model: Any = carrier.engine._model
        getattr(model, "_model", model).plans.clear()


def note_queues(count: Count, admission: Admission) -> None:
    count.most_waiting = max(count.most_waiting, admission.num_waiting)
    count.most_running = max(count.most_running, admission.num_running)


def loaded(num_clients: int, max_tokens: int = MAX_TOKENS, **settings: Any) -> Count:
    async def scenario(desk: Desk) -> Count:
        assert desk.draft is not None
        desk.target.step_s, desk.draft.step_s = TARGET_STEP_S, DRAFT_STEP_S
        return await load(desk, num_clients, max_tokens)

    count: Count = at_desk(scenario, TARGET, DRAFT, **settings)
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "num_carried", "max_tokens"),
    [(SLOTS, 8, MAX_TOKENS), (ROOM, 5, LONG)],
    ids=["slots", "memory"],
)
def test_finished_work_stays_at_its_peak(settings: dict[str, int], num_carried: int, max_tokens: int) -> None:
    peak = loaded(num_carried, max_tokens, **settings)
    overload = loaded(TIMES_TOO_MUCH * num_carried, max_tokens, **settings)
    assert overload.num_refused  # it was an overload
    assert overload.num_finished_tokens >= 0.9 * peak.num_finished_tokens


def test_queues_are_bounded_and_requests_beyond_are_refused() -> None:
    count = loaded(TIMES_TOO_MUCH * SLOTS["max_running"], **SLOTS)
    assert count.most_running == SLOTS["max_running"]
    assert count.most_waiting == SLOTS["max_waiting"]
    assert count.num_refused and count.num_finished


def test_memory_is_flat() -> None:
    """From the middle of an overload to its end, what grows is the list of ended sessions: some hundred bytes each."""
    tracemalloc.start()
    try:
        count = loaded(TIMES_TOO_MUCH * SLOTS["max_running"], **SLOTS)
    finally:
        tracemalloc.stop()
    middle, end = count.bytes_in_use
    assert (end - middle) / (count.num_finished / 2) < 1024
