"""A worker process: the port opens at once, the model loads on the device thread's side, then the stream is served."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tandem.config import Config, WorkerConfig
from tandem.core.liveness import Progress
from tandem.core.types import Description
from tandem.errors import TandemError
from tandem.metrics import metrics_served
from tandem.model.device import DeviceThread
from tandem.model.engine import Answer, Engine
from tandem.model.work import Work
from tandem.rpc.serving import Server, load_or_stop, server_options
from tandem.rpc.worker_metrics import WorkerMetrics
from tandem.rpc.worker_service import Streams, WorkerServicer
from tandem.v1 import worker_pb2_grpc

_LOOK_S = 1.0  # between two looks at the step loop's progress
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading a worker's model gives."""

    engine: Engine
    description: Description  # without what changes while it runs
    pieces: Sequence[str]


class AddServicer(Protocol):
    """Registers the worker's verb on a server."""

    def __call__(self, streams: Streams, server: Server) -> None: ...


async def serve_worker(
    config: Config,
    settings: WorkerConfig,
    role: str,
    load: Callable[[], Loaded],
    add_servicer: AddServicer,
    stopped: asyncio.Event,
) -> None:
    """Runs a worker of `role` (draft, target) until `stopped`. Raises what `load` raises."""
    names = [f"tandem.v1.{role.capitalize()}", "tandem.v1.Worker"]
    server = Server(server_options(config.rpc, config.rpc.max_message_bytes), names)
    streams, servicer = Streams(), WorkerServicer()
    add_servicer(streams, server)
    worker_pb2_grpc.add_WorkerServicer_to_server(servicer, server.grpc)
    await server.start(settings.host, settings.port)
    _log.info("listening on %s:%d, loading", settings.host, server.port)
    try:
        loaded = await load_or_stop(load, stopped)
        if loaded is not None:
            registry = WorkerMetrics(loaded.engine, role).registry
            with metrics_served(registry, settings.host, settings.metrics_port):
                watching = asyncio.create_task(_watch(loaded.engine.work, settings.stall_s, server))
                try:
                    await _run(loaded, streams, servicer, server, stopped, config.rpc.drain_s)
                finally:
                    watching.cancel()
    finally:
        await server.stop(config.rpc.drain_s)


async def _run(
    loaded: Loaded, streams: Streams, servicer: WorkerServicer, server: Server, stopped: asyncio.Event, drain_s: float
) -> None:
    loop = asyncio.get_running_loop()

    def deliver(answers: list[Answer]) -> None:
        loop.call_soon_threadsafe(streams.deliver, answers)

    device = DeviceThread(loaded.engine, deliver, lambda: _call_soon(loop, stopped.set))
    device.start()
    try:
        streams.open(device)
        servicer.open(_describe(loaded), loaded.pieces)
        await server.set_serving(True)
        _log.info("serving %s", loaded.description.model)
        await stopped.wait()
    finally:
        await server.stop(0.0 if device.failed else drain_s)  # nothing answers any more: callers are to go elsewhere
        device.stop()
    if device.failed:
        raise TandemError("the device thread failed; the log says why")


async def _watch(work: Work, stall_s: float, server: Server) -> None:
    """Ends liveness while the step loop stands still."""
    progress, alive = Progress(stall_s), True
    while True:
        await asyncio.sleep(_LOOK_S)
        stalled = progress.stalled(work.num_turns, time.monotonic())
        if stalled == alive:
            alive = not stalled
            await server.set_alive(alive)
            if stalled:
                _log.error("the step loop has not moved for %g s", stall_s)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(call)


def _describe(loaded: Loaded) -> Callable[[], Description]:
    """The description as of now. Reads two numbers of the engine's without a lock: each is one word."""
    fixed, table = replace(loaded.description, incarnation=uuid.uuid4().hex), loaded.engine.table

    def now() -> Description:
        used = table.pool.num_used * table.pool.block_size
        return replace(fixed, num_sessions=len(table.sessions), kv_used_tokens=used)

    return now
