"""Liveness is progress of the step loop: at work or idle it turns; what stands still is told apart from what is slow.

A family: a process that answers its health check while its engine hangs.
"""

import asyncio
import time
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.generation import tiny_engine
from harness.waiting import assert_eventually
from harness.worker_calls import session_id, verify
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.liveness import Progress
from tandem.core.types import Release
from tandem.model.device import DeviceThread
from tandem.rpc import worker_host
from tandem.rpc.health import LIVENESS
from tandem.rpc.serving import NOT_SERVING, SERVING, Server

looks = st.lists(st.tuples(st.booleans(), st.floats(0.0, 20.0)), max_size=30)


@given(looks)
def test_stalled_is_no_change_for_longer_than_the_patience(looks: list[tuple[bool, float]]) -> None:
    progress, now_s, count, changed_s = Progress(10.0), 100.0, 0, 100.0
    assert not progress.stalled(count, now_s)
    for moves, pause_s in looks:
        now_s += pause_s
        if moves:
            count, changed_s = count + 1, now_s
        assert progress.stalled(count, now_s) == (now_s - changed_s > 10.0)


async def test_an_idle_step_loop_turns() -> None:
    engine = tiny_engine("target", "target", clock_ns=time.monotonic_ns)
    device = DeviceThread(engine, lambda answers: None)
    device.start()
    try:
        seen = engine.work.num_turns
        await assert_eventually(lambda: engine.work.num_turns > seen + 1)
    finally:
        device.stop()


async def test_a_call_waits_until_it_has_had_a_row() -> None:
    engine = tiny_engine("target", "target", clock_ns=time.monotonic_ns)
    device = DeviceThread(engine, lambda answers: None)
    device.submit("stream", [verify(1, 1, [1, 2, 3]), Release(session_id(2))])
    assert engine.work.num_waiting == 1
    device.start()
    try:
        await assert_eventually(lambda: engine.work.num_steps > 0 and engine.work.num_waiting == 0)
    finally:
        device.stop()


async def _health(stub: Any, service: str) -> int:
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def test_a_loop_that_stands_still_ends_liveness_and_one_that_goes_on_brings_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_host, "_LOOK_S", 0.01)
    work, server = tiny_engine("target", "target").work, Server([], ["tandem.v1.Target"])
    await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert await _health(stub, LIVENESS) == SERVING, "a worker that loads is alive"
        assert await _health(stub, "tandem.v1.Target") == NOT_SERVING
        watching = asyncio.create_task(worker_host._watch(work, 0.05, server))
        while await _health(stub, LIVENESS) != NOT_SERVING:
            await asyncio.sleep(0.01)
        while await _health(stub, LIVENESS) != SERVING:
            work.num_turns += 1
            await asyncio.sleep(0.001)
        watching.cancel()
    await server.stop(0)
