"""python -m coordinator --config FILE"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from coordinator.door import SERVICE_NAME, Door
from coordinator.frontend import Frontend
from coordinator.gate import VocabularyGate
from coordinator.metrics import CoordinatorMetrics
from coordinator.pool import Pool
from coordinator.service import CoordinatorService
from tandem.config import Config, cache_folder
from tandem.metrics import metrics_served
from tandem.model.resolve import resolve
from tandem.model.tokenizer import load_tokenizer
from tandem.rpc.serving import Server, load_or_stop, server_options, service_main

_log = logging.getLogger("coordinator")


async def serve(config: Config, stopped: asyncio.Event) -> None:
    """Runs a coordinator until `stopped`: SERVING while a target worker takes requests."""
    door = Door()
    server = Server(server_options(config.rpc, config.limits.max_public_message_bytes), [SERVICE_NAME])
    server.grpc.add_generic_rpc_handlers((door.handlers(),))
    await server.start(config.coordinator.host, config.coordinator.port)
    _log.info("listening on %s:%d", config.coordinator.host, server.port)
    frontend = await load_or_stop(lambda: _load_frontend(config), stopped)
    if frontend is not None:
        await _run(config, server, door, frontend, stopped)
        frontend.close()
    await server.stop(config.rpc.drain_s)


async def _run(config: Config, server: Server, door: Door, frontend: Frontend, stopped: asyncio.Event) -> None:
    pool = Pool(config, VocabularyGate(frontend.pieces, frontend.vocabulary_hash))
    metrics = CoordinatorMetrics(config.coordinator.vllm_metric_names)
    pool.targets.on_answer = partial(metrics.answered, "target")
    pool.drafts.on_answer = partial(metrics.answered, "draft")
    settings = config.coordinator
    with metrics_served(metrics.registry, settings.host, settings.metrics_port):
        async with pool.connected():
            door.service = CoordinatorService(config, frontend, pool, Path(config.model.target).name, metrics)
            readiness = asyncio.create_task(_follow_targets(server, pool))
            try:
                await stopped.wait()
            finally:
                readiness.cancel()
                await server.stop(config.rpc.drain_s)


def _load_frontend(config: Config) -> Frontend:
    return Frontend(load_tokenizer(resolve(config.model.target, cache_folder())))


async def _follow_targets(server: Server, pool: Pool) -> None:
    while True:
        await pool.targets.until(lambda: pool.targets.open)
        await server.set_serving(True)
        await pool.targets.until(lambda: not pool.targets.open)
        await server.set_serving(False)


if __name__ == "__main__":
    service_main(serve)
