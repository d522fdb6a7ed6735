"""python -m target_worker --config FILE"""

from __future__ import annotations

import asyncio

from tandem.config import Config
from tandem.model.engine import Engine
from tandem.model.loading import describe, open_model
from tandem.rpc.serving import Server, service_main
from tandem.rpc.worker_host import Loaded, serve_worker
from tandem.rpc.worker_service import Streams, TargetServicer
from tandem.v1 import target_pb2_grpc
from target_worker.group import Group
from target_worker.verifier import MAX_BLOCK, Verifier


async def serve(config: Config, stopped: asyncio.Event) -> None:
    """Runs a target worker until `stopped`."""
    await serve_worker(config, config.target, "target", lambda: load(config), _add_servicer, stopped)


def load(config: Config) -> Loaded:
    """Loads the target model and builds its engine. Raises ModelError."""
    ready = open_model(config.model.target, config.model, config.target)
    model = ready.model
    verifier = Verifier(ready.num_embeddings, model.head_width, model.num_pieces, model.context_length)
    engine = Engine(Group(ready.runner), ready.table, verifier.open_job, config.target.max_step_tokens)
    return Loaded(engine, describe(ready, MAX_BLOCK), ready.pieces)


def _add_servicer(streams: Streams, server: Server) -> None:
    target_pb2_grpc.add_TargetServicer_to_server(TargetServicer(streams), server.grpc)


if __name__ == "__main__":
    service_main(serve)
