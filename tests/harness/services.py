"""The real services in one process, on ports of their own: gRPC between them, tiny models inside."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import torch

from coordinator.door import SERVICE_NAME, Door
from coordinator.frontend import Frontend
from coordinator.gate import VocabularyGate
from coordinator.pool import Pool
from coordinator.service import CoordinatorService
from draft_worker.drafter import MAX_PROPOSAL
from harness.generation import tiny_engine
from harness.tiny import byte_tokenizer, tiny_model
from tandem.config import Config, CoordinatorConfig, ModelConfig
from tandem.core.plan import StepPlan
from tandem.core.types import Description
from tandem.model.device import DeviceThread
from tandem.model.engine import Answer, Engine, Forward
from tandem.model.tokenizer import pieces
from tandem.rpc.serving import Server, server_options
from tandem.rpc.worker_service import DraftServicer, Streams, TargetServicer, WorkerServicer
from tandem.v1 import coordinator_pb2 as pb
from tandem.v1 import coordinator_pb2_grpc, draft_pb2_grpc, target_pb2_grpc, worker_pb2_grpc

HOST = "127.0.0.1"
RPC = Config().rpc


class Gated:
    """A model that blocks the device thread until it is released."""

    def __init__(self, model: Forward) -> None:
        self._model = model
        self.entered = threading.Event()
        self.released = threading.Event()
        self.released.set()

    def close(self) -> None:
        self.entered.clear()
        self.released.clear()

    def forward(self, plan: StepPlan) -> torch.Tensor:
        self.entered.set()
        assert self.released.wait(30.0), "nobody released the model"
        return self._model.forward(plan)


class LocalWorker:
    """A draft or target worker; may be stopped, and started again with nothing in its memory."""

    def __init__(self, role: str, name: str) -> None:
        self.role = role
        self.name = name
        self.port = 0
        self.engine: Engine
        self.gate: Gated
        self.is_running = False

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        self.engine = tiny_engine(self.role, self.name, clock_ns=time.monotonic_ns)
        self.gate = Gated(self.engine._model)
        self.engine._model = self.gate
        self._server = Server(server_options(RPC, RPC.max_message_bytes), [f"tandem.v1.{self.role.capitalize()}"])
        streams, servicer = Streams(), WorkerServicer()
        self._add(streams)
        worker_pb2_grpc.add_WorkerServicer_to_server(servicer, self._server.grpc)
        await self._server.start(HOST, self.port)
        self.port = self._server.port
        loop = asyncio.get_running_loop()

        def deliver(answers: list[Answer]) -> None:
            loop.call_soon_threadsafe(streams.deliver, answers)

        self._device = DeviceThread(self.engine, deliver)
        self._device.start()
        streams.open(self._device)
        servicer.open(lambda: _describe(self.name), _pieces(self.name))
        await self._server.set_serving(True)
        self.is_running = True

    async def stop(self) -> None:
        if self.is_running:
            self.is_running = False
            self.gate.released.set()
            await self._server.stop(0)
            self._device.stop()

    def _add(self, streams: Streams) -> None:
        if self.role == "draft":
            draft_pb2_grpc.add_DraftServicer_to_server(DraftServicer(streams), self._server.grpc)
        else:
            target_pb2_grpc.add_TargetServicer_to_server(TargetServicer(streams), self._server.grpc)


def _pieces(name: str) -> list[str]:
    return pieces(byte_tokenizer(permuted=name == "permuted draft"))


def _describe(name: str) -> Description:
    model = tiny_model(name)
    return Description(
        model=name,
        fingerprint=model.fingerprint,
        context_length=model.context_length,
        end_token_ids=model.end_token_ids,
        head_width=model.head_width,
        num_pieces=model.num_pieces,
        vocabulary_hash=model.vocabulary_hash,
        kv_budget_tokens=1024,
        max_block=MAX_PROPOSAL,
        incarnation=name,
    )


@dataclass
class System:
    """A coordinator with its workers, and a client of it."""

    target: LocalWorker
    draft: LocalWorker
    service: CoordinatorService
    pool: Pool
    channel: grpc.aio.Channel
    port: int

    @property
    def stub(self) -> Any:
        return coordinator_pb2_grpc.CoordinatorStub(self.channel)

    def call(self, prompt: Sequence[int], max_tokens: int = 20, k: int = 4, **stopping: Any) -> Any:
        """A Generate call under way, greedy."""
        return self.stub.Generate(
            pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=prompt),
                sampling=pb.SamplingParams(temperature=0.0),
                stopping=pb.StoppingParams(max_tokens=max_tokens, **stopping),
                speculation=pb.SpeculationParams(num_tokens=k),
            )
        )

    async def generate(self, prompt: Sequence[int], max_tokens: int = 20, **options: Any) -> tuple[list[int], Any]:
        """All tokens, and the finish."""
        chunks = [chunk async for chunk in self.call(prompt, max_tokens, **options)]
        return [token for chunk in chunks for token in chunk.token_ids], chunks[-1].finish

    async def draft_status(self) -> Any:
        status = await self.stub.Status(pb.StatusRequest())
        return next(worker for worker in status.workers if worker.role == "draft")

    def leftovers(self) -> list[str]:
        """What a request should not leave behind."""
        found = []
        for worker in (self.target, self.draft):
            if worker.is_running and (worker.engine.table.sessions or worker.engine._running):
                found.append(f"a session on the {worker.role} worker")
        links = (self.pool.target_link, self.pool.draft_link)
        found += [f"an open call to the {link.role} worker" for link in links if link and link.exchange._calls]
        found += ["a request"] * len(self.service._ids)
        return found


@contextlib.asynccontextmanager
async def running_system(draft: str = "near", draft_is_there: bool = True) -> AsyncIterator[System]:
    """Everything on ports that the system chose; nothing is left on leaving."""
    target, drafter = LocalWorker("target", "target"), LocalWorker("draft", draft)
    await target.start()
    await drafter.start()
    if not draft_is_there:
        await drafter.stop()
    config = Config(
        model=ModelConfig(target="target"),
        coordinator=CoordinatorConfig(target=target.address, draft=drafter.address, draft_wait_s=5.0),
    )
    tokenizer = byte_tokenizer()
    frontend = Frontend(tokenizer)
    pool = Pool(config, VocabularyGate(frontend.pieces, frontend.vocabulary_hash))
    door, server = Door(), Server(server_options(RPC, config.limits.max_public_message_bytes), [SERVICE_NAME])
    server.grpc.add_generic_rpc_handlers((door.handlers(),))
    await server.start(HOST, 0)
    try:
        async with pool.connected(), grpc.aio.insecure_channel(f"{HOST}:{server.port}") as channel:
            door.service = CoordinatorService(config, frontend, pool, "target")
            await asyncio.wait_for(pool.target_link.exchange.wait_connected(), 10)
            if draft_is_there and pool.draft_link is not None and draft != "permuted draft":
                await asyncio.wait_for(pool.draft_link.exchange.wait_connected(), 10)
            yield System(target, drafter, door.service, pool, channel, server.port)
    finally:
        await server.stop(0)
        await target.stop()
        await drafter.stop()
        frontend.close()
