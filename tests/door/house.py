"""A coordinator as `python -m coordinator` runs it, between two tiny workers, all in this process and on free ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.services import LocalWorker
from harness.tiny import reference, tiny_folder
from harness.waiting import assert_eventually

from coordinator import __main__ as coordinator
from coordinator.door import Door
from tandem.config import Config
from tandem.rpc.serving import Server
from tandem.v1 import coordinator_pb2 as pb

GENERATE = "/tandem.v1.Coordinator/Generate"
SERVING = health_pb2.HealthCheckResponse.SERVING
GOOD_PROMPT = tuple(b"once upon a time")
GOOD_LENGTH = 24


@dataclass
class Outcome:
    """How a call ended."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    chunks: list[pb.GenerateChunk] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)  # that BadRequest names
    retry_s: float | None = None  # of RetryInfo

    @property
    def ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]


def outcome_of(error: grpc.aio.AioRpcError) -> Outcome:
    outcome = Outcome(error.code(), error.details() or "")
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                _read_detail(outcome, detail)
    return outcome


def _read_detail(outcome: Outcome, detail: Any) -> None:
    bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    if detail.Unpack(bad):
        outcome.fields = [violation.field for violation in bad.field_violations]
    elif detail.Unpack(retry):
        outcome.retry_s = retry.retry_delay.ToTimedelta().total_seconds()


@dataclass
class House:
    """What runs, and a client's channel to it."""

    target: LocalWorker
    draft: LocalWorker
    door: Door
    channel: grpc.aio.Channel

    async def ask(self, message: bytes | pb.GenerateRequest, timeout: float | None = 20.0) -> Outcome:
        """One Generate call, from raw bytes to its status."""
        encoded = message if isinstance(message, bytes) else message.SerializeToString()
        call = self.channel.unary_stream(GENERATE, None, pb.GenerateChunk.FromString)(encoded, timeout=timeout)
        outcome = Outcome()
        try:
            async for chunk in call:
                outcome.chunks.append(chunk)
        except grpc.aio.AioRpcError as error:
            return outcome_of(error)
        finally:
            call.cancel()
        return outcome

    async def health(self) -> int:
        answer = await health_pb2_grpc.HealthStub(self.channel).Check(health_pb2.HealthCheckRequest(), timeout=5.0)
        return int(answer.status)

    @property
    def left(self) -> list[str]:
        """What requests have left behind."""
        service = self.door.service
        assert service is not None
        found = [f"request {name}" for name in service._ids] + ["a slot"] * service._admission.num_running
        for worker in (self.target, self.draft):
            if worker.is_running:
                found += [f"{worker.role} session"] * len(worker.engine.table.sessions)
        for link in service._pool.links:
            found += ["an open call"] * len(link.exchange._calls)
        return found

    async def assert_well(self) -> None:
        """Health is green, nothing is left behind, memory adds up."""
        assert await self.health() == SERVING
        await assert_eventually(lambda: not self.left)
        for worker in (self.target, self.draft):
            worker.engine.table.check()
            assert not worker.engine.table.pool.num_used


def good(**fields: Any) -> pb.GenerateRequest:
    """A request whose answer is known."""
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=GOOD_PROMPT),
        sampling=pb.SamplingParams(temperature=0.0),
        stopping=pb.StoppingParams(max_tokens=GOOD_LENGTH),
        **fields,
    )


def is_good(outcome: Outcome) -> bool:
    """Whether an answer to `good` is the target's own."""
    return outcome.ids == reference(GOOD_PROMPT, GOOD_LENGTH)


@contextlib.asynccontextmanager
async def open_house(folder: Path | None = None, **settings: Any) -> AsyncIterator[House]:
    """`folder` holds the tokenizer and names the model; `settings` are the coordinator's."""
    target, draft = LocalWorker("target", "target"), LocalWorker("draft", "near")
    await target.start()
    await draft.start()
    addresses = {"targets": [target.address], "drafts": [draft.address], "port": 0, "metrics_port": 0}
    config = Config(model={"target": str(folder or tiny_folder("target"))}, coordinator={**addresses, **settings})  # type: ignore[arg-type]
    try:
        async with (
            _coordinator(config) as (server, door),
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            yield House(target, draft, door, channel)
    finally:
        await draft.stop()
        await target.stop()


@contextlib.asynccontextmanager
async def _coordinator(config: Config) -> AsyncIterator[tuple[Server, Door]]:
    """Runs the shipped `serve`, and looks over its shoulder for the port and the door."""
    servers: list[Server] = []
    door, stopped = Door(), asyncio.Event()

    def new_server(*arguments: Any) -> Server:
        servers.append(Server(*arguments))
        return servers[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "Server", new_server)
        patch.setattr(coordinator, "Door", lambda: door)
        task = asyncio.create_task(coordinator.serve(config, stopped))
        try:
            await assert_eventually(lambda: _is_ready(door) or task.done(), 20.0)
            assert not task.done(), await task
            yield servers[0], door
        finally:
            stopped.set()
            await task


def _is_ready(door: Door) -> bool:
    service = door.service
    links = service._pool.links if service else []
    return bool(links) and all(link.ready for link in links)
