"""What can happen to a cluster: each fault begins, lasts and is over. How long it lasts is a part of the fault.

The time-outs of a cluster are a tenth or less of those in use, and so are these times: a stop of 3 s against 15 s of
keep-alive is one of 0.1 s here, and the longer ones are noticed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from harness.way import Way

from faults.cluster import Cluster, Coordinator, Worker

Strike = Callable[[Cluster, "Victims", float], Awaitable[None]]


@dataclass(frozen=True)
class Victims:
    """Whom a fault befalls, where it is one of that kind."""

    target: Worker
    draft: Worker
    coordinator: Coordinator
    rng: random.Random


async def kill(worker: Worker, down_s: float) -> None:
    """SIGKILL, and a new process after a while."""
    async with worker.turn:
        await worker.kill()
        await asyncio.sleep(down_s)
        await worker.start()


async def die_before_reply(cluster: Cluster, worker: Worker, down_s: float) -> None:
    """SIGKILL between compute and reply."""
    async with worker.turn:
        worker.die_at_answer(1)
    ends = [asyncio.create_task(event.wait()) for event in (worker.died, cluster.over)]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    await kill(worker, down_s)


async def hold(ways: Sequence[Way], lasts_s: float) -> None:
    """A partition; what was sent arrives when it heals, late."""
    for way in ways:
        way.hold()
    await asyncio.sleep(lasts_s)
    for way in ways:
        way.release()


async def stop(worker: Worker, lasts_s: float) -> None:
    """SIGSTOP and SIGCONT."""
    async with worker.turn:
        worker.pause()
        await asyncio.sleep(lasts_s)
        worker.resume()


async def kill_coordinator(coordinator: Coordinator, down_s: float) -> None:
    async with coordinator.turn:
        await coordinator.kill()
        await asyncio.sleep(down_s)
        await coordinator.restart()


async def jitter(ways: Sequence[Way], rng: random.Random, lasts_s: float) -> None:
    """Every piece that passes takes up to a time that is a good part of every time-out."""
    for way in ways:
        way.delay_s = lambda: rng.uniform(0.0, 0.05)
    await asyncio.sleep(lasts_s)
    for way in ways:
        way.delay_s = lambda: 0.0


def _ways_to(worker: Worker, victims: Victims) -> list[Way]:
    return [victims.coordinator.ways_out[worker.label]]


STRIKES: dict[str, Strike] = {
    "target killed": lambda cluster, on, s: kill(on.target, s),
    "draft killed": lambda cluster, on, s: kill(on.draft, s),
    "target killed before its reply": lambda cluster, on, s: die_before_reply(cluster, on.target, s),
    "draft killed before its reply": lambda cluster, on, s: die_before_reply(cluster, on.draft, s),
    "target stopped": lambda cluster, on, s: stop(on.target, s),
    "draft stopped": lambda cluster, on, s: stop(on.draft, s),
    "partition from a target": lambda cluster, on, s: hold(_ways_to(on.target, on), s),
    "partition from a draft": lambda cluster, on, s: hold(_ways_to(on.draft, on), s),
    "coordinator killed": lambda cluster, on, s: kill_coordinator(on.coordinator, s),
    "coordinator cut off": lambda cluster, on, s: hold([on.coordinator.way_in, *on.coordinator.ways_out.values()], s),
    "partition from the client": lambda cluster, on, s: hold([on.coordinator.way_in], s),
    "delays on all ways": lambda cluster, on, s: jitter(cluster.ways, on.rng, s),
}
