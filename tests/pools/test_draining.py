"""A worker or a coordinator that is asked to stop: no new work, the old is finished or handed over, and then it ends.

A stop with a grace ends before that only if nobody keeps it waiting; the graces here are longer than a test may last.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from harness.services import LocalWorker, running_coordinator
from harness.tiny import reference, tiny_folder
from harness.waiting import assert_eventually

from coordinator.__main__ import serve
from pools.fleet import NUM_TOKENS, PROMPTS, Traffic, ask_all, has_worked, until_joined, workers
from tandem.cli.local import free_ports
from tandem.config import Config
from tandem.v1 import coordinator_pb2 as pb
from tandem.v1 import coordinator_pb2_grpc

GRACE_S, PATIENCE_S = 300.0, 30.0


async def asked_to_stop(worker: LocalWorker) -> None:
    """Ends well within its grace."""
    await asyncio.wait_for(worker.stop(GRACE_S), PATIENCE_S)


@pytest.mark.parametrize("role", ["target", "draft"])
async def test_with_another_worker_what_runs_is_handed_over_and_the_worker_ends(role: str) -> None:
    async with workers("target", 2) as targets, workers("draft", 2) as drafts:
        addresses = [[worker.address for worker in pool] for pool in (targets, drafts)]
        async with running_coordinator(*addresses) as coordinator:
            await until_joined(coordinator, 2, 2)
            async with Traffic([coordinator]) as traffic:
                for worker in {"target": targets, "draft": drafts}[role]:
                    await assert_eventually(lambda worker=worker: has_worked(worker))  # type: ignore[misc]
                    await asked_to_stop(worker)
                    assert not worker.engine.table.sessions
                    await traffic.goes_on()
                    await worker.start()
                    await until_joined(coordinator, 2, 2)


async def test_without_another_worker_what_runs_is_finished_and_nothing_new_begins() -> None:
    async with workers("target", 1) as (target,), running_coordinator([target.address], []) as coordinator:
        await until_joined(coordinator, 1, 0)
        chunks = aiter(coordinator.call(PROMPTS[0], NUM_TOKENS, k=0))
        tokens = list((await anext(chunks)).token_ids)
        target.gate.close()
        stopping = asyncio.create_task(_stop_closed(target))
        await assert_eventually(lambda: coordinator.pool.targets.all[0].exchange.draining)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await coordinator.generate(PROMPTS[1])
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        (status,) = await coordinator.statuses("target")
        assert not status.ready and status.reason == "draining"
        target.gate.released.set()
        tokens += [token async for chunk in chunks for token in chunk.token_ids]
        assert tokens == reference(PROMPTS[0], NUM_TOKENS)
        await asyncio.wait_for(stopping, PATIENCE_S)


async def _stop_closed(worker: LocalWorker) -> None:
    """As `stop` with a grace, with its model still held."""
    await worker._server.stop(GRACE_S)
    await worker.stop()


async def test_a_worker_that_is_well_again_is_used_again() -> None:
    """Health that goes and comes back, with and without a session that keeps the stream up meanwhile."""
    async with (
        workers("target", 2) as (first, second),
        running_coordinator([first.address, second.address], []) as coordinator,
    ):
        await until_joined(coordinator, 2, 0)
        for is_loaded in (False, True):
            async with Traffic([coordinator], 4 * is_loaded) as traffic:
                await traffic.goes_on(3 * is_loaded)
                await first._server.set_serving(False)
                await until_joined(coordinator, 1, 0)
                await traffic.goes_on(3 * is_loaded)
                await first._server.set_serving(True)
                await until_joined(coordinator, 2, 0)
            await ask_all(coordinator)


async def test_a_coordinator_that_stops_finishes_what_runs_and_takes_nothing_new() -> None:
    """Row 24 of the bad inputs: draining is UNAVAILABLE."""
    (port,) = free_ports(1)
    async with workers("target", 1) as (target,), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        settings = {"targets": target.address, "drafts": "", "port": port, "metrics_port": 0}
        models, rpc = {"target": str(tiny_folder("target"))}, {"drain_s": GRACE_S}
        config = Config(model=models, coordinator=settings, rpc=rpc)  # type: ignore[arg-type]
        stub, stopped = coordinator_pb2_grpc.CoordinatorStub(channel), asyncio.Event()
        serving = asyncio.create_task(serve(config, stopped))
        assert await tokens_of(stub, wait_for_ready=True) == reference(PROMPTS[0], NUM_TOKENS)
        target.gate.close()
        running = asyncio.create_task(tokens_of(stub))
        await assert_eventually(target.gate.entered.is_set)
        stopped.set()
        await until_refused(stub.Status, pb.StatusRequest())
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await tokens_of(stub)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        target.gate.released.set()
        assert await running == reference(PROMPTS[0], NUM_TOKENS)
        await asyncio.wait_for(serving, PATIENCE_S)


async def tokens_of(stub: Any, **options: Any) -> list[int]:
    """One request's, waited for until the coordinator is there and has a target."""
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPTS[0]),
        sampling=pb.SamplingParams(temperature=0.0),
        stopping=pb.StoppingParams(max_tokens=NUM_TOKENS),
    )
    while True:
        try:
            return [token async for chunk in stub.Generate(request, **options) for token in chunk.token_ids]
        except grpc.aio.AioRpcError as error:
            if not (options.get("wait_for_ready") and error.code() is grpc.StatusCode.UNAVAILABLE):
                raise


async def until_refused(method: Any, request: Any) -> None:
    """Calls until the answer is UNAVAILABLE; gRPC cancels a call that comes in the very moment of the stop."""
    while True:
        try:
            await method(request, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return
