"""Who is let into a pool, and what Status says of those who are not. Families E59, I94; row 24 of the bad inputs."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import grpc
import pytest
from harness.services import running_coordinator
from harness.tiny import reference
from harness.waiting import assert_eventually
from harness.way import Way

from pools.fleet import NUM_TOKENS, PROMPTS, Names, ask_all, has_worked, until_joined, workers

FOREIGN = {"target": "draft", "draft": "target"}  # another model of the same vocabulary


@pytest.mark.parametrize("role", ["target", "draft"])
async def test_a_worker_with_another_fingerprint_is_refused_and_seen(
    role: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with workers("target", 1) as targets, workers("draft", 1) as drafts, workers(role, 1, FOREIGN[role]) as odd:
        names = Names(targets=targets, drafts=drafts)
        async with running_coordinator(["targets:1"], ["drafts:1"], names, resolve_s=0.02) as coordinator:
            await until_joined(coordinator, 1, 1)
            names.records[f"{role}s"] += odd
            await assert_eventually(lambda: any("fingerprint" in link.reason for link in coordinator.pool.links))
            known, stranger = await coordinator.statuses(role)
            assert known.ready and not known.reason
            assert stranger.address == odd[0].address and not stranger.ready and "fingerprint" in stranger.reason
            await ask_all(coordinator)
            assert not has_worked(odd[0])
            assert any(odd[0].address in message and "fingerprint" in message for message in caplog.messages)


async def test_another_model_takes_over_once_the_last_worker_of_the_first_is_gone() -> None:
    """A rolling update; what had begun under the first model is not continued by the second."""
    async with workers("target", 1) as old, workers("target", 1, "draft") as new:
        names, settings = Names(targets=list(old)), {"resolve_s": 0.02, "target_wait_s": 0.5}
        async with running_coordinator(["targets:1"], [], names, **settings) as coordinator:
            await until_joined(coordinator, 1, 0)
            names.records["targets"] += new
            await assert_eventually(lambda: any("fingerprint" in link.reason for link in coordinator.pool.links))
            chunks = aiter(coordinator.call(PROMPTS[0], 200, k=0))
            await anext(chunks)
            await old[0].stop()
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                async for _ in chunks:
                    pass
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            await until_joined(coordinator, 1, 0)
            tokens, _ = await coordinator.generate(PROMPTS[0], 20, k=0)
            assert tokens == reference(PROMPTS[0], 20, name="draft")


async def test_a_worker_that_two_addresses_lead_to_is_one_worker() -> None:
    async with workers("target", 1) as (target,):
        way = Way(lambda: target.port)
        await way.open()
        try:
            async with running_coordinator([target.address, way.address], []) as coordinator:
                await until_joined(coordinator, 1, 0)
                await assert_eventually(
                    lambda: any("another address" in link.reason for link in coordinator.pool.links)
                )
                assert sorted(worker.ready for worker in await coordinator.statuses("target")) == [False, True]
                await ask_all(coordinator)
        finally:
            await way.close()


@pytest.mark.parametrize("role", ["target", "draft"])
async def test_a_worker_joins_when_its_health_says_serving_and_not_before(role: str) -> None:
    async with workers("target", 2) as targets, workers("draft", 2) as drafts:
        late = {"target": targets, "draft": drafts}[role][1]
        await late._server.set_serving(False)
        addresses = [[worker.address for worker in pool] for pool in (targets, drafts)]
        async with running_coordinator(*addresses) as coordinator:
            await until_joined(coordinator, 2 - (role == "target"), 2 - (role == "draft"))
            assert "not serving" in (await coordinator.statuses(role))[1].reason
            await ask_all(coordinator)
            assert not has_worked(late)
            await late._server.set_serving(True)
            await until_joined(coordinator, 2, 2)
            await ask_all(coordinator)
            assert has_worked(late)


async def test_without_a_target_a_request_is_unavailable_and_the_reason_is_told() -> None:
    names = Names(targets=[])
    async with running_coordinator(["targets:1"], [], names, resolve_s=0.02) as coordinator:
        await assert_eventually(lambda: names.num_asked > 0)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await coordinator.generate(PROMPTS[0])
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "targets has no addresses" in (failed.value.details() or "")
        (status,) = await coordinator.statuses("target")
        assert (status.address, status.ready) == ("targets:1", False) and "no addresses" in status.reason


async def test_a_request_waits_for_a_target_that_is_still_to_join() -> None:
    """It had a worker when it came, and lost it; the one that it goes on with is new to the pool."""
    async with workers("target", 2) as (first, second):
        names = Names(targets=[first])
        async with running_coordinator(["targets:1"], [], names, resolve_s=0.02) as coordinator:
            await until_joined(coordinator, 1, 0)
            chunks = aiter(coordinator.call(PROMPTS[0], NUM_TOKENS, k=0))
            tokens = list((await anext(chunks)).token_ids)
            await first.stop()
            names.records["targets"] = [second]
            async with asyncio.timeout(20.0):
                tokens += [token async for chunk in chunks for token in chunk.token_ids]
            assert tokens == reference(PROMPTS[0], NUM_TOKENS)


async def test_what_the_smallest_target_cannot_hold_is_refused_by_all() -> None:
    """A request may go on at any of them."""
    async with (
        workers("target", 2) as (large, small),
        running_coordinator([large.address, small.address], []) as coordinator,
    ):
        await until_joined(coordinator, 2, 0)
        replica = coordinator.pool.targets.all[1]
        assert replica.description is not None
        replica.description = replace(replica.description, kv_budget_tokens=len(PROMPTS[0]) + NUM_TOKENS + 1)
        await coordinator.generate(PROMPTS[0], NUM_TOKENS, k=0)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await coordinator.generate(PROMPTS[0], NUM_TOKENS + 1, k=0)
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
