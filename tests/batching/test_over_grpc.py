"""Many clients over real sockets: leaving, deadlines, a full house, and one who does not read.

Families D51, D57, I91, E65.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from harness.services import LocalWorker, System, running_system
from harness.tiny import reference
from harness.waiting import assert_eventually

from coordinator.admission import Admission, Limits
from tandem.core.types import Item, Release
from tandem.v1 import coordinator_pb2 as pb
from tandem.v1 import coordinator_pb2_grpc

TEXT = tuple(b"hello world")
NUM_TRIALS = 100
STAGES = ("at once", "mid-step", "between verify and write", "last token")


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def num_tasks() -> int:
    return len(asyncio.all_tasks())


@contextlib.contextmanager
def closed(worker: LocalWorker) -> Any:
    """No forward pass ends while entered."""
    worker.gate.close()
    try:
        yield worker.gate
    finally:
        worker.gate.released.set()


async def entered(worker: LocalWorker) -> None:
    await assert_eventually(worker.gate.entered.is_set)


async def leave(call: Any) -> None:
    call.cancel()
    assert await call.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.OK}


async def rest_of(call: Any) -> list[pb.GenerateChunk]:
    """What has not been read yet; for calls that are read message by message."""
    chunks = []
    while (chunk := await call.read()) is not grpc.aio.EOF:
        chunks.append(chunk)
    return chunks


async def leave_at(system: System, stage: str, rng: random.Random) -> None:
    call = system.call(tuple(rng.choices(range(256), k=9)), 12, k=rng.choice([0, 3]))
    if stage == "mid-step":
        with closed(system.target):
            reading = asyncio.ensure_future(call.read())
            await entered(system.target)
            await leave(call)
            await asyncio.gather(reading, return_exceptions=True)
    elif stage != "at once":
        for _ in range(1 if stage == "between verify and write" else 100):
            chunk = await call.read()
            if chunk.HasField("finish"):
                break
    await leave(call)


async def test_a_hundred_who_leave_take_everything_with_them() -> None:
    async with running_system() as system:
        await system.generate(TEXT)
        await assert_eventually(lambda: not system.leftovers())
        tasks, descriptors = num_tasks(), num_descriptors()
        rng = random.Random(1)
        for trial in range(NUM_TRIALS):
            await leave_at(system, STAGES[trial % 4], rng)
        await assert_eventually(lambda: not system.leftovers())
        await assert_eventually(lambda: num_tasks() <= tasks and num_descriptors() <= descriptors)
        for worker in (system.target, system.draft):
            worker.engine.table.check()
            assert worker.engine.table.pool.num_used == 0 and not worker.engine.busy
        assert system.service._admission.num_running == 0
        tokens, _ = await system.generate(TEXT)
        assert tokens == reference(TEXT, 20)


@pytest.mark.parametrize("where", ["target", "draft"])
async def test_a_cancel_is_over_at_the_end_of_the_step_that_runs(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker learns of it while it computes, and computes nothing more."""
    came: list[Item] = []
    async with running_system() as system:
        worker = system.target if where == "target" else system.draft
        submit = worker._device.submit

        def recorded(stream: Hashable, items: Sequence[Item]) -> None:
            submit(stream, items)
            came.extend(items)

        monkeypatch.setattr(worker._device, "submit", recorded)
        call = system.call(TEXT, 60)
        await call.read()
        with closed(worker):
            await entered(worker)
            await leave(call)
            await assert_eventually(lambda: any(isinstance(item, Release) for item in came))  # not just the next call
            worker.gate.entered.clear()
        await assert_eventually(lambda: not worker.engine.busy and not worker.engine.table.sessions)
        assert not worker.gate.entered.is_set(), "a forward pass for one who has left"
        await assert_eventually(lambda: not system.leftovers())


async def test_sixteen_at_once_over_sockets_while_others_leave() -> None:
    prompts = [TEXT[: 1 + index % 11] for index in range(16)]
    async with running_system() as system:
        calls = [asyncio.create_task(system.generate(prompt, 24, k=index % 4)) for index, prompt in enumerate(prompts)]
        leavers = [asyncio.create_task(leave_at(system, STAGES[index % 3], random.Random(index))) for index in range(6)]
        for prompt, (tokens, _) in zip(prompts, await asyncio.gather(*calls), strict=True):
            assert tokens == reference(prompt, 24)
        await asyncio.gather(*leavers)
        await assert_eventually(lambda: not system.leftovers())


async def assert_late(call: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rest_of(call)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_deadline_that_passes_in_the_queue_makes_no_model_call() -> None:
    async with running_system() as system:
        system.service._admission = Admission(Limits(1, 9, 1000))
        first = system.call(TEXT, 60)
        await first.read()
        with closed(system.target):
            await entered(system.target)
            sessions = set(system.target.engine.table.sessions)
            await assert_late(system.stub.Generate(request(TEXT[:4], 40), timeout=0.1))
            await assert_eventually(lambda: len(system.service._ids) == 1)
        assert set(system.target.engine.table.sessions) <= sessions
        tokens = [token for chunk in await rest_of(first) for token in chunk.token_ids]
        assert tokens == reference(TEXT, 60)[-len(tokens) :]
        assert system.target.engine.table._num_created == 1, "a model call was made for it"
        await assert_eventually(lambda: not system.leftovers())


@pytest.mark.parametrize("num_chunks", [0, 1, 3], ids=["prefill", "first round", "mid-round"])
async def test_a_deadline_that_passes_on_a_worker_frees_it(num_chunks: int) -> None:
    async with running_system() as system:
        call = system.stub.Generate(request(TEXT, 200), timeout=2.0)
        for _ in range(num_chunks):
            await call.read()
        with closed(system.target):
            await assert_late(call)
        await assert_eventually(lambda: not system.leftovers() and not system.target.engine.busy)
        system.target.engine.table.check()
        assert (await system.generate(TEXT))[0] == reference(TEXT, 20)


def request(prompt: tuple[int, ...], max_tokens: int, **sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt),
        sampling=pb.SamplingParams(temperature=0.0, **sampling),
        stopping=pb.StoppingParams(max_tokens=max_tokens),
    )


async def test_beyond_the_queue_one_is_told_at_once_and_when_to_come_back() -> None:
    async with running_system() as system:
        system.service._admission = Admission(Limits(max_running=1, max_waiting=1, max_waiting_tokens=1000))
        with closed(system.target):
            waiting = [asyncio.create_task(system.generate(TEXT)) for _ in range(2)]
            await assert_eventually(lambda: system.service._admission.num_waiting == 1)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await system.generate(TEXT)
            assert not waiting[0].done()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        retry = error_details_pb2.RetryInfo()
        status = rpc_status.from_call(refused.value)
        assert status.details[0].Unpack(retry) and retry.retry_delay.ToMilliseconds() > 0
        for tokens, _ in await asyncio.gather(*waiting):
            assert tokens == reference(TEXT, 20)


async def test_what_can_never_fit_the_memory_is_the_callers_fault() -> None:
    """At once, whatever else runs."""
    async with running_system() as system:
        (replica,) = system.pool.targets.all
        assert replica.description is not None
        replica.description = replace(replica.description, kv_budget_tokens=48)
        assert (await system.generate(TEXT, 48 - len(TEXT) - 1))[0] == reference(TEXT, 48 - len(TEXT) - 1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await system.generate(TEXT, 48 - len(TEXT))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "max_tokens" in (refused.value.details() or "")


SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0))


@contextlib.asynccontextmanager
async def slow_reader(system: System) -> AsyncIterator[Any]:
    """Asks for an answer larger than the window of its connection, takes one message, and takes no more."""
    options = SMALL_WINDOW
    async with grpc.aio.insecure_channel(f"127.0.0.1:{system.port}", options=options) as channel:
        stub = coordinator_pb2_grpc.CoordinatorStub(channel)
        call = stub.Generate(request(TEXT, 230, logprobs=20))
        try:
            await call.read()
            yield call
        finally:
            call.cancel()


async def test_a_slow_reader_stalls_only_itself_with_bounded_memory() -> None:
    async with running_system() as system, slow_reader(system) as call:
        (request_id,) = system.service._ids
        sessions = system.target.engine.table.sessions

        def num_tokens() -> int:
            return max((len(session.tokens) for session in sessions.values()), default=0)

        seen, same = 0, 0
        while same < 20:  # stands still while others finish
            tokens, _ = await system.generate(TEXT, 12)
            assert tokens == reference(TEXT, 12)
            same, seen = (same + 1, seen) if num_tokens() == seen else (0, num_tokens())
        assert request_id in system.service._ids, "all of it was taken from the coordinator: the window is too large"
        assert len(TEXT) < seen < len(TEXT) + 230
        rest = await rest_of(call)
        assert rest[-1].HasField("finish") and rest[-1].finish.num_output_tokens == 230
        assert rest[-1].token_ids[-1] == reference(TEXT, 230)[-1]
        await assert_eventually(lambda: not system.leftovers())
