"""python -m target_worker --config FILE"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from dataclasses import replace
from functools import partial

from tandem.config import Config
from tandem.model.engine import Engine
from tandem.model.loading import ReadyModel, describe, open_model
from tandem.rpc.serving import Server, service_main
from tandem.rpc.worker_host import Loaded, serve_worker
from tandem.rpc.worker_service import Streams, TargetServicer
from tandem.v1 import target_pb2_grpc
from target_worker.group import Group
from target_worker.rebuild import Rebuild
from target_worker.tensor_parallel import TensorParallel
from target_worker.verifier import MAX_BLOCK, Verifier


async def serve(config: Config, stopped: asyncio.Event) -> None:
    """Runs a target worker until `stopped`."""
    parallel = _parallel(config, stopped) if config.target.tensor_parallel_size > 1 else None
    try:
        await serve_worker(config, config.target, "target", lambda: load(config, parallel), _add_servicer, stopped)
    finally:
        if parallel is not None:
            parallel.close()


def _parallel(config: Config, stopped: asyncio.Event) -> TensorParallel:
    loop = asyncio.get_running_loop()

    def restore_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)

    return TensorParallel(config, Rebuild(stopped), partial(loop.call_soon_threadsafe, restore_signals))


def load(config: Config, parallel: TensorParallel | None = None) -> Loaded:
    """Loads the target model and builds its engine. Raises ModelError."""
    ready, group = parallel.open() if parallel is not None else _open_alone(config)
    model, size = ready.model, config.target.tensor_parallel_size
    verifier = Verifier(ready.num_embeddings, model.head_width, model.num_pieces, model.context_length)
    engine = Engine(group, ready.table, verifier.open_job, config.target.max_step_tokens)
    return Loaded(engine, replace(describe(ready, MAX_BLOCK), tensor_parallel_size=size), ready.pieces)


def _open_alone(config: Config) -> tuple[ReadyModel, Group]:
    ready = open_model(config.model.target, config.model, config.target)
    return ready, Group(ready.runner)


def _add_servicer(streams: Streams, server: Server) -> None:
    target_pb2_grpc.add_TargetServicer_to_server(TargetServicer(streams), server.grpc)


def main() -> None:
    """Ends without tearing the interpreter down: threads of torch and gloo may still use what that would free."""
    try:
        service_main(serve)
    except SystemExit as end:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(end.code or 0))


if __name__ == "__main__":
    main()
