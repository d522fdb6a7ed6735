"""Random schedules of faults, each from its seed alone: which, when, whom, for how long, and under which requests."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass

from harness.waiting import assert_eventually

from faults.asks import Ask, random_ask
from faults.cluster import KEEPALIVE_S, Cluster, Shape, running_cluster
from faults.history import History
from faults.strikes import STRIKES, Victims

_NUM_ASKS = 3
_LONGEST_S = 4 * KEEPALIVE_S  # half of all times are too short to be noticed, half are not


@dataclass(frozen=True)
class Planned:
    """A fault, from the moment at which so many tokens have come."""

    fault: str
    after: int
    victim: int  # its place among those of its kind, in circles
    lasts_s: float


@dataclass(frozen=True)
class Schedule:
    seed: int
    shape: Shape
    asks: tuple[Ask, ...]
    faults: tuple[Planned, ...]


def make_schedule(seed: int) -> Schedule:
    rng = random.Random(seed)
    shape = Shape(rng.choice((1, 2, 2)), rng.choice((1, 2, 2)), rng.choice((1, 2, 2)), rng.choice(("near", "draft")))
    asks = tuple(random_ask(rng) for _ in range(_NUM_ASKS))
    num_tokens = sum(ask.num_tokens for ask in asks)
    faults = tuple(
        Planned(rng.choice(list(STRIKES)), rng.randrange(num_tokens), rng.randrange(2), rng.uniform(0.0, _LONGEST_S))
        for _ in range(rng.choice((1, 1, 2, 3)))
    )
    return Schedule(seed, shape, asks, faults)


async def run(schedule: Schedule) -> History:
    """The history of one schedule, in a cluster of its own."""
    history = History()
    outputs = [ask.output for ask in schedule.asks]  # computed on this loop: before anything waits
    num_tasks = len(asyncio.all_tasks())
    async with running_cluster(schedule.shape, history) as cluster:
        asks = enumerate(zip(schedule.asks, outputs, strict=True))
        asking = [asyncio.create_task(ask.of(cluster.client, history, f"r{i}", output)) for i, (ask, output) in asks]
        strikes = [asyncio.create_task(_strike(cluster, planned, schedule.seed)) for planned in schedule.faults]
        await asyncio.gather(*asking)
        cluster.over.set()
        await asyncio.gather(*strikes)
    with contextlib.suppress(AssertionError):
        await assert_eventually(lambda: len(asyncio.all_tasks()) == num_tasks, 10.0)
    history.remains("tasks", num_tasks, len(asyncio.all_tasks()))
    return history


async def _strike(cluster: Cluster, planned: Planned, seed: int) -> None:
    history, place = cluster.history, planned.victim
    await history.until_came(planned.after)
    history.struck(planned.fault)
    victims = Victims(
        target=cluster.targets[place % len(cluster.targets)],
        draft=cluster.drafts[place % len(cluster.drafts)],
        coordinator=cluster.coordinators[place % len(cluster.coordinators)],
        rng=random.Random(seed),
    )
    await STRIKES[planned.fault](cluster, victims, planned.lasts_s)
