"""The real services in one process, on ports of their own: gRPC between them, tiny models inside."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import torch

from coordinator.discovery import Resolve, system_resolver
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
from tandem.rpc.link import Link
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
        self.description: Description
        self.is_running = False

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        self.engine = self.make_engine()
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
        self.description = description = _describe(self.name)
        servicer.open(lambda: description, _pieces(self.name))
        await self._server.set_serving(True)
        self.is_running = True

    def make_engine(self) -> Engine:
        """Called at every start."""
        return tiny_engine(self.role, self.name, clock_ns=time.monotonic_ns)

    async def stop(self, grace_s: float = 0.0) -> None:
        """As a process ends: at once, or, with a grace, as after SIGTERM."""
        if self.is_running:
            self.is_running = False
            self.gate.released.set()
            await self._server.stop(grace_s)
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
        incarnation=uuid.uuid4().hex,
    )


@dataclass
class Coordinator:
    """A coordinator and a client of it."""

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

    async def statuses(self, role: str) -> list[Any]:
        """Of the workers of a role."""
        status = await self.stub.Status(pb.StatusRequest())
        return [worker for worker in status.workers if worker.role == role]

    async def draft_status(self) -> Any:
        return (await self.statuses("draft"))[0]

    def link(self, role: str) -> Link:
        """To the first worker of a role."""
        return next(link for link in self.pool.links if link.role == role)


@dataclass
class System(Coordinator):
    """A coordinator with one worker of each role."""

    target: LocalWorker
    draft: LocalWorker

    def leftovers(self) -> list[str]:
        """What a request should not leave behind."""
        found = []
        for worker in (self.target, self.draft):
            if worker.is_running and (worker.engine.table.sessions or worker.engine._running):
                found.append(f"a session on the {worker.role} worker")
        found += [f"an open call to the {link.role} worker" for link in self.pool.links if link.exchange._calls]
        found += ["a request"] * len(self.service._ids)
        return found


@contextlib.asynccontextmanager
async def running_coordinator(
    targets: Sequence[str], drafts: Sequence[str], resolve: Resolve = system_resolver, **settings: Any
) -> AsyncIterator[Coordinator]:
    """A coordinator on a port of its own, whether its workers are there or not. `settings` are the coordinator's."""
    config = Config(
        model=ModelConfig(target="target"),
        coordinator=CoordinatorConfig(targets=tuple(targets), drafts=tuple(drafts), draft_wait_s=5.0, **settings),
    )
    frontend = Frontend(byte_tokenizer())
    pool = Pool(config, VocabularyGate(frontend.pieces, frontend.vocabulary_hash), resolve)
    door, server = Door(), Server(server_options(RPC, config.limits.max_public_message_bytes), [SERVICE_NAME])
    server.grpc.add_generic_rpc_handlers((door.handlers(),))
    await server.start(HOST, 0)
    try:
        async with pool.connected(), grpc.aio.insecure_channel(f"{HOST}:{server.port}") as channel:
            door.service = CoordinatorService(config, frontend, pool, "target")
            yield Coordinator(door.service, pool, channel, server.port)
    finally:
        await server.stop(0)
        frontend.close()


@contextlib.asynccontextmanager
async def running_system(draft: str = "near", draft_is_there: bool = True) -> AsyncIterator[System]:
    """Everything on ports that the system chose; nothing is left on leaving."""
    target, drafter = LocalWorker("target", "target"), LocalWorker("draft", draft)
    await target.start()
    await drafter.start()
    if not draft_is_there:
        await drafter.stop()
    try:
        async with running_coordinator([target.address], [drafter.address]) as coordinator:
            pool = coordinator.pool
            await asyncio.wait_for(pool.targets.until(lambda: pool.targets.open), 10)
            if draft_is_there and draft != "permuted draft":
                await asyncio.wait_for(pool.drafts.until(lambda: pool.drafts.open), 10)
            yield System(coordinator.service, pool, coordinator.channel, coordinator.port, target, drafter)
    finally:
        await target.stop()
        await drafter.stop()
