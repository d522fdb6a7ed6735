"""Coordinators, workers and a client in this process, a way between any two of them, and what can happen to each.

    client ──way──> coordinator 0, 1 ──way──> target 0, 1
                                     ──way──> draft 0, 1

A process that is killed takes all its connections with it, at once, and what it had not sent; it comes back on the
same ports with nothing in its memory. One that is stopped keeps them, and everything that arrives waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.services import HOST, LocalWorker
from harness.tiny import byte_tokenizer
from harness.waiting import assert_eventually
from harness.way import Way

from coordinator.door import SERVICE_NAME, Door
from coordinator.frontend import Frontend
from coordinator.gate import VocabularyGate
from coordinator.pool import Pool
from coordinator.replicas import Replica
from coordinator.service import CoordinatorService
from faults.history import History
from tandem.client import AsyncClient, Retry
from tandem.config import Config, RpcConfig
from tandem.core.types import Verdict
from tandem.model.engine import Answer, Engine
from tandem.rpc.serving import Server, server_options

KEEPALIVE_S = 0.25  # the longest silence that is not noticed is this and its time-out, as long again
_FAST = RpcConfig(keepalive_s=KEEPALIVE_S, keepalive_timeout_s=KEEPALIVE_S, drain_s=0.0)
RETRY = Retry(max_attempts=100, first_pause_s=0.02, longest_pause_s=0.1)
CLIENT_OPTIONS = [
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_S * 1000)),
]
TIMES = {"draft_wait_s": 0.2, "draft_retry_s": 0.1, "target_retry_s": 0.1, "target_wait_s": 20.0, "answer_wait_s": 20.0}


@dataclass(frozen=True)
class Shape:
    num_coordinators: int = 1
    num_targets: int = 2
    num_drafts: int = 2
    draft: str = "near"


class Worker(LocalWorker):
    """A worker whose history is written, and who can die with an answer on its lips."""

    def __init__(self, role: str, model: str, index: int, history: History) -> None:
        super().__init__(role, model)
        self.label = f"{role} {index}"
        self.ways: list[Way] = []  # to it, one from each coordinator
        self.incarnation = 0
        self.turn = asyncio.Lock()  # one fault at a time
        self.died = asyncio.Event()
        self._history = history
        self._doomed = 0  # the incarnation that dies with one of its next answers
        self._answers_left = 0

    async def start(self) -> None:
        self.port = 0  # the ways know it; whoever comes over them does not see the change
        self.died.clear()
        self._loop = asyncio.get_running_loop()
        await super().start()
        for way in self.ways:
            await way.open()

    def make_engine(self) -> Engine:
        engine = super().make_engine()
        self.incarnation += 1
        self._history.watch(engine.table, self.label, self.incarnation)
        step, incarnation = engine.step, self.incarnation

        def watched_step() -> list[Answer]:
            answers = step()
            return [] if answers and self._dies(incarnation) else answers

        def step_in_step() -> list[Answer]:
            lockstep.before_step()
            answers = watched_step()
            if any(isinstance(reply.body, Verdict) for _, reply in answers):
                lockstep.answered()
            return answers

        lockstep = self._history.lockstep
        engine.step = step_in_step if self.role == "target" else watched_step  # type: ignore[method-assign]
        return engine

    async def kill(self) -> None:
        self.resume()
        for way in self.ways:
            way.cut()
        await self.stop()

    def die_at_answer(self, number: int) -> None:
        """From now on: that answer is computed and not sent, nor is any after it; then `died` is set."""
        self._answers_left, self._doomed = number, self.incarnation

    def live_on(self) -> None:
        """Unless it has died already."""
        if not self.died.is_set():
            self._doomed = 0

    def _dies(self, incarnation: int) -> bool:
        """On the device thread."""
        if incarnation != self._doomed:
            return False
        self._answers_left -= 1
        if self._answers_left > 0:
            return False
        self._loop.call_soon_threadsafe(self.died.set)
        return True

    @property
    def is_in_use(self) -> bool:
        """Whether it has a session that somebody may still call."""
        return self.is_running and bool(_num_sessions(self))

    def pause(self) -> None:
        """As SIGSTOP does: neither computes nor answers, connections stay."""
        self.gate.close()
        for way in self.ways:
            way.hold()

    def resume(self) -> None:
        self.gate.released.set()
        for way in self.ways:
            way.release()


class Coordinator:
    """A coordinator, the way to it, and its ways to the workers, where it goes by ways."""

    def __init__(
        self, targets: Sequence[str], drafts: Sequence[str], ways_out: Mapping[str, Way], frontend: Frontend
    ) -> None:
        self.service: CoordinatorService
        self.pool: Pool
        self.way_in = Way(lambda: self._port)
        self.ways_out = ways_out
        self.is_running = False
        self.turn = asyncio.Lock()  # one fault at a time
        self._settings: dict[str, Any] = {"targets": targets, "drafts": drafts, **TIMES}
        self._frontend = frontend
        self._port = 0
        self._life = contextlib.AsyncExitStack()

    async def start(self) -> None:
        config = Config(coordinator=self._settings, rpc=_FAST)  # type: ignore[arg-type]
        self.pool = Pool(config, VocabularyGate(self._frontend.pieces, self._frontend.vocabulary_hash))
        door, server = Door(), Server(server_options(_FAST, config.limits.max_public_message_bytes), [SERVICE_NAME])
        server.grpc.add_generic_rpc_handlers((door.handlers(),))
        await server.start(HOST, 0)
        self._port = server.port
        await self._life.enter_async_context(self.pool.connected())
        self._life.push_async_callback(server.stop, 0)
        door.service = self.service = CoordinatorService(config, self._frontend, self.pool, "target")
        await self.way_in.open()
        self.is_running = True

    async def kill(self) -> None:
        """Nothing that it would still say reaches anybody."""
        self.is_running = False
        for way in (self.way_in, *self.ways_out.values()):
            way.cut()
        await self._life.aclose()

    async def restart(self) -> None:
        await self.start()
        for way in self.ways_out.values():
            await way.open()

    @property
    def ready(self) -> bool:
        """All workers have joined, and none is left alone for what it did before."""
        return all(replica.is_open and replica.allows() for replica in self._replicas)

    @property
    def incarnations(self) -> set[str]:
        """Of the workers as they joined: of one that was killed a moment ago the old one may still be taken to live."""
        return {replica.description.incarnation for replica in self._replicas if replica.description}

    @property
    def _replicas(self) -> list[Replica]:
        return [*self.pool.targets.all, *self.pool.drafts.all]

    @property
    def num_open_calls(self) -> int:
        return sum(len(link.exchange._calls) for link in self.pool.links)


class Cluster:
    """All of them; see the picture above."""

    def __init__(self, shape: Shape, history: History, frontend: Frontend) -> None:
        self.history = history
        self.over = asyncio.Event()  # all requests have ended
        self.targets = [Worker("target", "target", index, history) for index in range(shape.num_targets)]
        self.drafts = [Worker("draft", shape.draft, index, history) for index in range(shape.num_drafts)]
        self.coordinators = [self._coordinator(frontend) for _ in range(shape.num_coordinators)]
        addresses = [coordinator.way_in.address for coordinator in self.coordinators]
        self.client = AsyncClient(*addresses, retry=RETRY, channel_options=CLIENT_OPTIONS)

    def _coordinator(self, frontend: Frontend) -> Coordinator:
        ways = {worker.label: Way(lambda worker=worker: worker.port) for worker in self.workers}  # type: ignore[misc]
        for worker in self.workers:
            worker.ways.append(ways[worker.label])
        targets, drafts = ([ways[each.label].address for each in pool] for pool in (self.targets, self.drafts))
        return Coordinator(targets, drafts, ways, frontend)

    @property
    def workers(self) -> list[Worker]:
        return [*self.targets, *self.drafts]

    @property
    def ways(self) -> list[Way]:
        return [way for each in self.coordinators for way in (each.way_in, *each.ways_out.values())]

    async def start(self) -> None:
        for worker in self.workers:
            await worker.start()
        for coordinator in self.coordinators:
            await coordinator.start()
        await self.until_ready()

    async def until_ready(self) -> None:
        """All workers, as they are now, have joined all coordinators."""
        incarnations = {worker.description.incarnation for worker in self.workers}
        running = [each for each in self.coordinators if each.is_running]
        await assert_eventually(lambda: all(each.ready and each.incarnations == incarnations for each in running), 20.0)

    async def until_quiet(self, before: Mapping[str, int]) -> None:
        """Waits for what is on its way to end; whether it did is in `remains`."""
        with contextlib.suppress(AssertionError):
            await assert_eventually(lambda: self.remains() == before, 10.0)

    def remains(self) -> dict[str, int]:
        """What requests and faults may leave behind, by name; one connection from each coordinator to each worker."""
        return {
            "sessions of open streams": sum(map(_num_sessions, self.workers)),
            "running calls": sum(len(worker.engine._running) for worker in self.workers),
            "open calls": sum(coordinator.num_open_calls for coordinator in self.coordinators),
            "requests": sum(len(coordinator.service._ids) for coordinator in self.coordinators),
            "slots": sum(coordinator.service._admission.num_running for coordinator in self.coordinators),
            "connections": sum(way.num_connections for each in self.coordinators for way in each.ways_out.values()),
        }

    def blocks_left(self) -> int:
        """Blocks in use on stopped workers, once every lease is over: what a broken stream left goes with it."""
        for worker in self.workers:
            worker.engine.table.expire(1e12)
            worker.engine.table.check()
        return sum(worker.engine.table.pool.num_used for worker in self.workers)

    async def stop(self) -> None:
        await self.client.close()
        for coordinator in self.coordinators:
            if coordinator.is_running:
                await coordinator.kill()
        for worker in self.workers:
            await worker.kill()
        for way in self.ways:
            await way.close()


def _num_sessions(worker: Worker) -> int:
    """Those that nobody may evict: a session whose stream has ended is none."""
    return sum(session.stream is not None for session in list(worker.engine.table.sessions.values()))


@contextlib.asynccontextmanager
async def running_cluster(shape: Shape, history: History) -> AsyncIterator[Cluster]:
    """Leaves nothing; notes what there is to leave."""
    frontend = Frontend(byte_tokenizer())
    cluster = Cluster(shape, history, frontend)
    try:
        await cluster.start()
        before = cluster.remains()
        yield cluster
        await cluster.until_ready()
        await cluster.until_quiet(before)
        for what, count in cluster.remains().items():
            history.remains(what, before[what], count)
    finally:
        await cluster.stop()
        frontend.close()
    history.remains("blocks", 0, cluster.blocks_left())
