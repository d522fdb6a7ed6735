"""Who runs, who waits, who is turned away; and that no slot is ever lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from harness.virtual_time import run_virtual

from coordinator.admission import Admission, Limits
from tandem.errors import Overloaded


class Visitor:
    """One request at the door."""

    def __init__(self, admission: Admission, num_tokens: int = 1) -> None:
        self.num_tokens = num_tokens
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._visit(admission))

    @property
    def is_waiting(self) -> bool:
        return not self.task.done() and not self.inside.is_set()

    @property
    def is_inside(self) -> bool:
        return not self.task.done() and self.inside.is_set()

    async def _visit(self, admission: Admission) -> None:
        async with admission.slot(self.num_tokens):
            self.inside.set()
            await self.leave.wait()


async def settled() -> None:
    """All that is ready has run."""
    await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def visiting(admission: Admission, *sizes: int) -> AsyncIterator[list[Visitor]]:
    """Visitors in the order of arrival; all have gone in the end, and all slots are free."""
    visitors = []
    for size in sizes:
        visitors.append(Visitor(admission, size))
        await settled()
    yield visitors
    for visitor in visitors:
        visitor.task.cancel()
    await asyncio.gather(*(visitor.task for visitor in visitors), return_exceptions=True)
    assert (admission.num_running, admission.num_waiting) == (0, 0)


async def refused(admission: Admission, num_tokens: int) -> Overloaded:
    """The refusal, which must come without a wait."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(Overloaded) as refusal:
        async with admission.slot(num_tokens):
            pass
    assert asyncio.get_running_loop().time() == began
    assert refusal.value.retry_after_s > 0
    return refusal.value


def test_the_queue_is_bounded_by_requests() -> None:
    async def scenario() -> None:
        admission = Admission(Limits(max_running=2, max_waiting=3, max_waiting_tokens=1000))
        async with visiting(admission, *[1] * 5) as visitors:
            assert (admission.num_running, admission.num_waiting) == (2, 3)
            await refused(admission, 1)
            visitors[0].leave.set()
            await settled()
            assert (admission.num_running, admission.num_waiting) == (2, 2)

    run_virtual(scenario())


def test_the_queue_is_bounded_by_tokens() -> None:
    """Running requests do not count, and one that waits alone may be of any size."""

    async def scenario() -> None:
        admission = Admission(Limits(max_running=1, max_waiting=9, max_waiting_tokens=100))
        async with visiting(admission, 500, 60, 40) as visitors:
            assert admission.num_waiting == 2
            await refused(admission, 1)
            visitors[1].task.cancel()
            await settled()
            assert admission.num_waiting == 1
            async with visiting(Admission(Limits(1, 9, 100)), 1, 500) as alone:
                assert alone[1].is_waiting

    run_virtual(scenario())


def test_no_queue_at_all() -> None:
    async def scenario() -> None:
        admission = Admission(Limits(max_running=1, max_waiting=0, max_waiting_tokens=100))
        async with visiting(admission, 1):
            await refused(admission, 1)

    run_virtual(scenario())


def test_slots_are_given_in_the_order_of_arrival_and_nobody_overtakes() -> None:
    async def scenario() -> None:
        admission = Admission(Limits(max_running=1, max_waiting=9, max_waiting_tokens=100))
        async with visiting(admission, 1, 5, 1, 1) as visitors:
            for inside, waiting in ((1, 2), (2, 3)):
                visitors[inside - 1].leave.set()
                late = Visitor(admission)  # arrives in the very moment in which a slot is given away
                await settled()
                assert visitors[inside].is_inside and visitors[waiting].is_waiting and late.is_waiting
                late.task.cancel()

    run_virtual(scenario())


def test_one_that_waits_and_is_cancelled_leaves_at_once() -> None:
    async def scenario() -> None:
        admission = Admission(Limits(max_running=1, max_waiting=2, max_waiting_tokens=10))
        async with visiting(admission, 1, 5, 5) as visitors:
            await refused(admission, 1)
            visitors[1].task.cancel()
            await settled()
            assert admission.num_waiting == 1
            next_one = Visitor(admission, 5)
            await settled()
            assert next_one.is_waiting
            next_one.task.cancel()

    run_virtual(scenario())


def test_a_slot_given_to_one_that_is_cancelled_in_the_same_moment_goes_to_the_next() -> None:
    async def scenario() -> None:
        admission = Admission(Limits(max_running=1, max_waiting=9, max_waiting_tokens=100))
        async with visiting(admission, 1, 1, 1) as visitors:
            visitors[0].leave.set()
            await asyncio.sleep(0)  # the first leaves: the second has its slot, but has not run yet
            visitors[1].task.cancel()
            await settled()
            assert visitors[1].task.cancelled() and visitors[2].is_inside
            assert (admission.num_running, admission.num_waiting) == (1, 0)

    run_virtual(scenario())


@pytest.mark.parametrize("seed", range(4))
def test_no_slot_is_lost_however_requests_come_and_go(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        limits = Limits(max_running=rng.randrange(1, 4), max_waiting=5, max_waiting_tokens=40)
        admission, visitors = Admission(limits), list[Visitor]()
        for _ in range(2_000):
            for _ in range(rng.randrange(4)):  # several in one moment
                act = rng.randrange(4)
                if act < 2:
                    visitors.append(Visitor(admission, rng.randrange(1, 20)))
                elif act == 2 and visitors:
                    rng.choice(visitors).leave.set()
                elif visitors:
                    rng.choice(visitors).task.cancel()
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
            await settled()
            await asyncio.gather(*(gone.task for gone in visitors if gone.task.done()), return_exceptions=True)
            visitors = [visitor for visitor in visitors if not visitor.task.done()]
            check(admission, limits, visitors)
        for visitor in visitors:
            visitor.leave.set()
        await settled()
        assert (admission.num_running, admission.num_waiting, admission._num_waiting_tokens) == (0, 0, 0)

    run_virtual(scenario())


def check(admission: Admission, limits: Limits, visitors: list[Visitor]) -> None:
    inside = [visitor for visitor in visitors if visitor.is_inside]
    waiting = [visitor for visitor in visitors if visitor.is_waiting]
    assert admission.num_running == len(inside) <= limits.max_running
    assert admission.num_waiting == len(waiting) <= limits.max_waiting
    assert admission._num_waiting_tokens == sum(visitor.num_tokens for visitor in waiting)
    assert not waiting or len(inside) == limits.max_running, "nobody waits while a slot is free"
    assert len(waiting) < 2 or admission._num_waiting_tokens <= limits.max_waiting_tokens


@pytest.mark.parametrize(("held_s", "num_waiting", "pause_s"), [(4.0, 6, 12.0), (0.1, 6, 1.0), (900.0, 6, 30.0)])
def test_who_is_refused_is_to_come_back_when_those_who_wait_have_begun(
    held_s: float, num_waiting: int, pause_s: float
) -> None:
    """Two slots, each held for so long by all before; no sooner than in a second, no later than in half a minute."""

    async def scenario() -> None:
        admission = Admission(Limits(max_running=2, max_waiting=num_waiting, max_waiting_tokens=1000))
        for _ in range(200):
            async with admission.slot(1):
                await asyncio.sleep(held_s)
        async with visiting(admission, *[1] * (2 + num_waiting)):
            assert (await refused(admission, 1)).retry_after_s == pytest.approx(pause_s, rel=0.01)

    run_virtual(scenario())
