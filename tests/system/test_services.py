"""The services over real gRPC. Families D51, E59, I91, I92, I94."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from harness.services import SERVICE_NAME, System, running_system
from harness.tiny import CONTEXT_LENGTH, reference
from harness.waiting import assert_eventually

from tandem.v1 import coordinator_pb2 as pb

TEXT = tuple(b"hello world")
SERVING = health_pb2.HealthCheckResponse.SERVING


async def health(address: str) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5.0)
        return answer.status


async def assert_nothing_left(system: System, num_tasks: int | None = None) -> None:
    await assert_eventually(lambda: not system.leftovers())
    if num_tasks is not None:
        await assert_eventually(lambda: len(asyncio.all_tasks()) <= num_tasks)


async def test_a_request_streams_the_targets_own_text() -> None:
    async with running_system("near") as system:
        tokens, finish = await system.generate(TEXT, 40)
        assert tokens == reference(TEXT, 40)
        assert finish.reason == pb.FINISH_REASON_MAX_TOKENS and finish.num_output_tokens == 40
        assert finish.speculation.num_accepted_tokens > 0 and not finish.speculation.num_fallbacks
        await assert_nothing_left(system)


async def test_requests_at_once_say_what_each_says_alone() -> None:
    """Family C39."""
    prompts = [TEXT, TEXT, (*TEXT, 1), (9,), TEXT[:5], (200, 201), TEXT, (7,) * 40]
    async with running_system("near") as system:
        results = await asyncio.gather(*(system.generate(prompt, 20) for prompt in prompts))
        assert [tokens for tokens, _ in results] == [reference(prompt, 20) for prompt in prompts]
        await assert_nothing_left(system)


async def test_health_answers_while_a_forward_pass_runs() -> None:
    async with running_system() as system:
        system.target.gate.close()
        call = system.call(TEXT)
        await assert_eventually(system.target.gate.entered.is_set)
        assert await health(system.target.address) == SERVING
        assert await health(system.draft.address) == SERVING
        assert (await system.stub.Status(pb.StatusRequest(), timeout=5.0)).num_running == 1
        system.target.gate.released.set()
        tokens = [token async for chunk in call for token in chunk.token_ids]
        assert tokens == reference(TEXT, 20)


@pytest.mark.parametrize("num_chunks", [0, 1, 2, 3])
async def test_a_client_that_leaves_leaves_nothing_behind(num_chunks: int) -> None:
    """Before the first token, in mid-stream; twice, since to cancel again is no fault."""
    async with running_system("near") as system:
        await system.generate(TEXT, 3)
        await assert_nothing_left(system)
        num_tasks = len(asyncio.all_tasks())
        for _ in range(3):
            await _leave_after(system, num_chunks)
            await assert_nothing_left(system, num_tasks)
        assert (await system.generate(TEXT, 20))[0] == reference(TEXT, 20)


async def _leave_after(system: System, num_chunks: int) -> None:
    if num_chunks == 0:
        system.target.gate.close()
    call, seen = system.call(TEXT, max_tokens=150, k=1), 0
    with contextlib.suppress(asyncio.CancelledError):
        if num_chunks == 0:
            await assert_eventually(system.target.gate.entered.is_set)
            call.cancel()
        async for _ in call:
            seen += 1
            if seen == num_chunks:
                call.cancel()
                call.cancel()
    system.target.gate.released.set()
    assert await call.code() is grpc.StatusCode.CANCELLED


async def test_a_client_that_leaves_after_the_last_token_leaves_nothing_behind() -> None:
    async with running_system("near") as system:
        await system.generate(TEXT, 3)
        num_tasks = len(asyncio.all_tasks())
        for _ in range(3):
            call = system.call(TEXT, max_tokens=4)
            async for chunk in call:
                if chunk.HasField("finish"):
                    call.cancel()
                    break
            await assert_nothing_left(system, num_tasks)


async def test_a_storm_of_cancels_harms_nobody_else() -> None:
    """Families D53, I91."""
    async with running_system("near") as system:
        good = asyncio.create_task(system.generate(TEXT, 100))
        calls = [system.call((index,), max_tokens=100) for index in range(30)]
        for index, call in enumerate(calls):
            if index % 3:
                await call.read()
            call.cancel()
        assert (await good)[0] == reference(TEXT, 100)
        await assert_nothing_left(system)


async def test_a_deadline_ends_a_request_and_leaves_nothing() -> None:
    async with running_system("near") as system:
        system.target.gate.close()
        request = pb.GenerateRequest(text="hello", sampling=pb.SamplingParams(temperature=0.0))
        call = system.stub.Generate(request, timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        system.target.gate.released.set()
        await assert_nothing_left(system)


async def test_an_ended_output_with_an_ahead_block_under_way_leaves_nothing() -> None:
    """An end token comes while the next block is being drafted."""
    async with running_system("target") as system:
        for slot in (3, 7, 8):
            tokens, finish = await system.generate(TEXT, 60, stop_token_ids=[reference(TEXT, 20)[slot]])
            assert tokens == reference(TEXT, 60, [reference(TEXT, 20)[slot]])
            assert finish.reason == pb.FINISH_REASON_END_TOKEN
            await assert_nothing_left(system)


async def test_a_draft_with_another_vocabulary_is_refused_by_name_and_requests_are_served() -> None:
    """Family E59: equal sizes, permuted ids."""
    async with running_system("permuted draft") as system:
        link = system.link("draft")
        await assert_eventually(lambda: "vocabulary" in link.reason)
        status = await system.draft_status()
        assert not status.ready and "token 97 is 'b'" in status.reason and "'a'" in status.reason
        tokens, finish = await system.generate(TEXT, 20)
        assert tokens == reference(TEXT, 20)
        assert dict(finish.speculation.num_fallbacks) == {"unavailable": 18}
        assert not system.draft.engine.table.sessions


async def test_a_draft_that_is_killed_and_comes_back_changes_no_text() -> None:
    """Family I94: the cause is counted, and drafting resumes."""
    async with running_system("near") as system:
        call, tokens = system.call(TEXT, max_tokens=120, k=2), []
        async for chunk in call:
            tokens += chunk.token_ids
            if system.draft.is_running:
                await system.draft.stop()
            last = chunk
        assert tokens == reference(TEXT, 120)
        assert sum(last.finish.speculation.num_fallbacks.values()) > 0
        await system.draft.start()
        link = system.link("draft")
        await assert_eventually(lambda: link.ready)
        tokens, finish = await system.generate(TEXT, 40)
        assert tokens == reference(TEXT, 40)
        assert finish.speculation.num_accepted_tokens > 0
        await assert_nothing_left(system)


async def test_an_absent_draft_is_counted_and_seen_in_the_status() -> None:
    async with running_system("near", draft_is_there=False) as system:
        tokens, finish = await system.generate(TEXT, 20)
        assert tokens == reference(TEXT, 20)
        assert dict(finish.speculation.num_fallbacks) == {"unavailable": 18}
        status = await system.draft_status()
        assert not status.ready and "UNAVAILABLE" in status.reason


async def test_a_target_that_is_killed_and_comes_back_repeats_and_loses_nothing() -> None:
    async with running_system("near") as system:
        call, tokens, has_died = system.call(TEXT, max_tokens=120, k=2), [], False
        async for chunk in call:
            tokens += chunk.token_ids
            if not has_died:
                has_died = True
                await system.target.stop()
                await system.target.start()
        assert tokens == reference(TEXT, 120)
        await assert_nothing_left(system)


async def test_without_a_target_a_request_is_unavailable() -> None:
    """Family I94."""
    async with running_system("near") as system:
        await system.target.stop()
        await assert_eventually(lambda: not system.pool.targets.open)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await system.generate(TEXT, 5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


GARBAGE = [b"\xff" * 40, b"\x0a\x80", b"\x2a\x04abcd", b"\x1b" * 200, b"\x0a\x05\xff\xfe\xfd\xfc\xfb", b"hello"]


@pytest.mark.parametrize("message", GARBAGE)
async def test_garbage_bytes_are_an_invalid_argument(message: bytes) -> None:
    async with running_system("near") as system:
        method = system.channel.unary_stream(f"/{SERVICE_NAME}/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(message).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await assert_nothing_left(system)


async def test_refusals_name_the_field_and_harm_no_other_request() -> None:
    """Families A13, I92; no path returns UNKNOWN."""
    bad = [
        (pb.GenerateRequest(), "input"),
        (pb.GenerateRequest(text=""), "input"),
        (pb.GenerateRequest(chat=pb.Chat()), "chat"),
        (pb.GenerateRequest(chat=pb.Chat(messages=[pb.Message(role="boss", content="x")])), "chat.messages.role"),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[4294967295])), "prompt"),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * CONTEXT_LENGTH)), "input"),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * (CONTEXT_LENGTH + 1))), "input"),
        (pb.GenerateRequest(text="x", stopping=pb.StoppingParams(max_tokens=0)), "stopping.max_tokens"),
    ]
    async with running_system("near") as system:
        good = asyncio.create_task(system.generate(TEXT, 60))
        for request, field in bad:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await system.stub.Generate(request).read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, request
            assert _fields(caught.value) == [field]
        assert (await good)[0] == reference(TEXT, 60)
        await assert_nothing_left(system)


def _fields(error: Any) -> list[str]:
    status = rpc_status.from_call(error)
    assert status is not None
    violations = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(violations)
    return [violation.field for violation in violations.field_violations]


async def test_a_prompt_one_below_the_context_gets_its_one_token() -> None:
    """Family A13."""
    prompt = tuple(index % 256 for index in range(CONTEXT_LENGTH - 1))
    async with running_system("near") as system:
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=pb.SamplingParams(temperature=0.0))
        chunks = [chunk async for chunk in system.stub.Generate(request)]
        assert [token for chunk in chunks for token in chunk.token_ids] == reference(prompt, 1)
        assert chunks[-1].finish.reason == pb.FINISH_REASON_CONTEXT_FULL


async def test_a_prior_output_at_its_end_is_one_chunk_without_a_model_call() -> None:
    async with running_system("near") as system:
        ref = reference(TEXT, 5)
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=TEXT),
            sampling=pb.SamplingParams(temperature=0.0),
            stopping=pb.StoppingParams(max_tokens=4),
            prior_output=pb.TokenIds(ids=ref),
        )
        (chunk,) = [chunk async for chunk in system.stub.Generate(request)]
        assert chunk.finish.reason == pb.FINISH_REASON_MAX_TOKENS and not chunk.token_ids
        assert not system.target.gate.entered.is_set()


async def test_a_request_id_is_used_once_at_a_time() -> None:
    async with running_system("near") as system:
        system.target.gate.close()
        request = pb.GenerateRequest(request_id="mine", text="hello", sampling=pb.SamplingParams(temperature=0.0))
        first = system.stub.Generate(request)
        await assert_eventually(system.target.gate.entered.is_set)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await system.stub.Generate(request).read()
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        first.cancel()
        system.target.gate.released.set()
        await assert_nothing_left(system)
