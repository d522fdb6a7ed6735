"""A worker is killed at every point of a request in turn. The client sees every token once, in order, and the very text
of the undisturbed run; with a second replica at once, without one as soon as the worker is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from harness.waiting import assert_eventually

from faults.asks import Ask
from faults.cluster import Cluster, Coordinator, Shape, Worker, running_cluster
from faults.history import History
from faults.invariants import violations
from tandem.core.types import Rule

NUM_TOKENS = 12
ALONE, REPLICATED = Shape(1, 1, 1), Shape(1, 2, 2)
TWO_COORDINATORS = Shape(2, 1, 1)
RULES = (Rule.GREEDY, Rule.COUPLED, Rule.REJECTION)
PLAIN = [Ask(num_tokens=8, rule=Rule.GREEDY, ahead=False, k=2), Ask(num_tokens=8, rule=Rule.COUPLED, ahead=True, k=3)]

Blow = Callable[[Cluster, Ask, str, int], Awaitable[bool]]  # one request, hit at a point; whether it was hit there


def _name(value: object) -> str | None:
    if isinstance(value, Ask):
        return f"{value.rule.name.lower()}, {'ahead' if value.ahead else 'in turn'}, {value.k}"
    return f"{value.num_targets} targets" if isinstance(value, Shape) else None


def every_way(plain: list[Ask] = PLAIN, block_lengths: tuple[int, ...] = (1, 3, 8)) -> pytest.MarkDecorator:
    """All rules, both lookaheads, block lengths: a few of them always, the whole of it where there is time."""
    ways = itertools.product(RULES, (False, True), block_lengths)
    asks = [Ask(num_tokens=NUM_TOKENS, rule=rule, ahead=ahead, k=k) for rule, ahead, k in ways]
    slow = [pytest.param(ask, marks=pytest.mark.slow) for ask in asks]
    return pytest.mark.parametrize("ask", [*plain, *slow], ids=_name)


async def sweep(shape: Shape, ask: Ask, num_points: int, blow: Blow) -> None:
    """The request again and again, hit at each point in turn; more than half of the blows must have landed."""
    history, num_hits = History(), 0
    ask.output  # noqa: B018  (computed here, and not while somebody waits)
    async with running_cluster(shape, history) as cluster:
        for point in range(num_points):
            num_hits += await blow(cluster, ask, f"r{point}", point)
            await cluster.until_ready()
    assert violations(history.events) == []
    assert num_hits > num_points // 2


@contextlib.asynccontextmanager
async def standing(cluster: Cluster, ask: Ask, name: str, point: int) -> AsyncIterator[asyncio.Task[None]]:
    """A request that stands still once so many of its tokens have come, unless these are all; left, it goes on."""
    target = cluster.history.num_came + point
    with cluster.history.lockstep.until(target):
        request = begun(cluster, ask, name)
        await cluster.history.until_came(target)
        yield request


async def in_use(workers: Sequence[Worker], request: asyncio.Task[None]) -> Worker | None:
    """The worker that a standing request is on; None if it has ended instead."""
    await assert_eventually(lambda: request.done() or any(worker.is_in_use for worker in workers))
    return next((worker for worker in workers if worker.is_in_use), None)


def begun(cluster: Cluster, ask: Ask, name: str) -> asyncio.Task[None]:
    return asyncio.create_task(ask.of(cluster.client, cluster.history, name, ask.output))


def pool(cluster: Cluster, role: str) -> list[Worker]:
    return cluster.targets if role == "target" else cluster.drafts


async def kill(cluster: Cluster, victim: Worker, request: asyncio.Task[None]) -> None:
    """Where there is another one, the request must get along without it; else it comes back at once."""
    await victim.kill()
    if len(pool(cluster, victim.role)) > 1:
        await request
    await victim.start()
    await request


def after_token(role: str) -> Blow:
    """SIGKILL when so many tokens have come: from before the first to after the last."""

    async def blow(cluster: Cluster, ask: Ask, name: str, point: int) -> bool:
        workers = pool(cluster, role)
        async with standing(cluster, ask, name, point) as request:
            victim = await in_use(workers, request) if point else None
        await kill(cluster, victim or workers[point % len(workers)], request)
        return victim is not None

    return blow


def before_reply(role: str) -> Blow:
    """SIGKILL between compute and reply, of so-many-th answer."""

    async def blow(cluster: Cluster, ask: Ask, name: str, point: int) -> bool:
        workers = pool(cluster, role)
        for worker in workers:
            worker.die_at_answer(point + 1)
        request = begun(cluster, ask, name)
        deaths = [asyncio.create_task(worker.died.wait()) for worker in workers]
        await asyncio.wait([request, *deaths], return_when=asyncio.FIRST_COMPLETED)
        victim = next((worker for worker in workers if worker.died.is_set()), workers[0])
        has_died = victim.died.is_set()
        for worker in workers:
            worker.live_on()
        for death in deaths:
            death.cancel()
        await kill(cluster, victim, request)
        return has_died

    return blow


def long(ask: Ask) -> Ask:
    """So that more points lie before the last block than in it."""
    return replace(ask, num_tokens=2 * ask.num_tokens)


@every_way()
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("shape", [ALONE, REPLICATED], ids=_name)
async def test_a_worker_is_killed_after_each_token(shape: Shape, role: str, ask: Ask) -> None:
    ask = long(ask)
    await sweep(shape, ask, ask.num_tokens + 1, after_token(role))


@every_way([PLAIN[1]])
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("shape", [ALONE, REPLICATED], ids=_name)
async def test_a_worker_is_killed_between_compute_and_reply(shape: Shape, role: str, ask: Ask) -> None:
    """A request has at least a verify for k + 1 tokens, and the draft answers for each of its own."""
    num_points = -(-ask.num_tokens // (ask.k + 1)) if role == "target" else ask.num_tokens // 2
    await sweep(shape, ask, num_points, before_reply(role))


@every_way([PLAIN[1]])
async def test_a_coordinator_is_killed_after_each_token(ask: Ask) -> None:
    """The client goes on at the other one, from the tokens that it has."""

    async def blow(cluster: Cluster, ask: Ask, name: str, point: int) -> bool:
        async with standing(cluster, ask, name, point) as request:
            busy = [each for each in cluster.coordinators if each.service._ids]
        victim: Coordinator = [*busy, *cluster.coordinators][0]
        await victim.kill()
        await request
        await victim.restart()
        return bool(busy)

    ask = long(ask)
    await sweep(TWO_COORDINATORS, ask, ask.num_tokens + 1, blow)


@every_way([PLAIN[1]], block_lengths=(3,))
@pytest.mark.parametrize("how", ["stopped", "cut off"])
@pytest.mark.parametrize("role", ["target", "draft"])
async def test_a_worker_falls_silent_for_long(role: str, how: str, ask: Ask) -> None:
    """Keep-alive notices; the request ends elsewhere before the silence does. Late calls and replies change nothing."""

    async def blow(cluster: Cluster, ask: Ask, name: str, point: int) -> bool:
        async with standing(cluster, ask, name, 1) as request:
            victim = await in_use(pool(cluster, role), request)
            assert victim is not None
            if how == "stopped":
                victim.pause()
            else:
                for way in victim.ways:
                    way.hold()
        await request
        num_held = sum(way.num_held for way in victim.ways)
        victim.resume()
        return num_held > 0

    await sweep(REPLICATED, replace(ask, num_tokens=16), 3, blow)


@every_way([PLAIN[1]], block_lengths=(3,))
async def test_a_stop_that_is_shorter_than_keep_alive_is_waited_for(ask: Ask) -> None:
    """3 s against 15 s of keep-alive, in scale: no worker is given up for it."""

    async def blow(cluster: Cluster, ask: Ask, name: str, point: int) -> bool:
        victim = cluster.targets[0]
        async with standing(cluster, ask, name, 1) as request:
            victim.gate.close()  # the forward pass stands still; the process answers pings
        await assert_eventually(lambda: request.done() or victim.gate.entered.is_set())
        stood_still = not request.done()
        victim.resume()
        await request
        return stood_still

    await sweep(ALONE, replace(ask, num_tokens=16), 3, blow)


async def test_a_client_that_is_cut_off_from_one_coordinator_goes_on_at_the_other() -> None:
    async def blow(cluster: Cluster, ask: Ask, name: str, point: int) -> bool:
        async with standing(cluster, ask, name, 1) as request:
            busy = next(each for each in cluster.coordinators if each.service._ids)
            busy.way_in.hold()
            was_running = not request.done()
        await request
        busy.way_in.release()
        return was_running

    await sweep(TWO_COORDINATORS, PLAIN[1], 3, blow)
