"""Any number of workers, changed while requests run: none fails, and what joins carries load. Families I94, D54."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from harness.services import Coordinator, LocalWorker, running_coordinator
from harness.tiny import reference
from harness.waiting import assert_eventually

from pools.fleet import NUM_TOKENS, PROMPTS, Names, Traffic, ask_all, has_worked, until_joined, workers

SIZES = [(1, 1), (1, 3), (3, 1), (2, 3)]


@pytest.mark.parametrize(("num_targets", "num_drafts"), SIZES)
async def test_every_worker_carries_load_in_any_proportion(num_targets: int, num_drafts: int) -> None:
    async with workers("target", num_targets) as targets, workers("draft", num_drafts) as drafts:
        addresses = [[worker.address for worker in pool] for pool in (targets, drafts)]
        async with running_coordinator(*addresses) as coordinator:
            await until_joined(coordinator, num_targets, num_drafts)
            await ask_all(coordinator)
            assert all(map(has_worked, [*targets, *drafts]))
            assert [len(await coordinator.statuses(role)) for role in ("target", "draft")] == [num_targets, num_drafts]
            await _assert_nothing_left(coordinator)


async def _assert_nothing_left(coordinator: Coordinator) -> None:
    await assert_eventually(lambda: not any(link.exchange._calls for link in coordinator.pool.links))
    assert not any(link.exchange.num_sessions for link in coordinator.pool.links)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "drained"])
@pytest.mark.parametrize("role", ["target", "draft"])
async def test_a_pool_grows_and_shrinks_under_load(role: str, is_killed: bool) -> None:
    """From one worker to three and back to another one; the names change, and workers end with or without a word."""
    async with workers("target", 3) as targets, workers("draft", 3) as drafts:
        changing = {"target": targets, "draft": drafts}[role]
        names = Names(targets=targets[:1], drafts=drafts[:1])
        async with running_coordinator(["targets:1"], ["drafts:1"], names, resolve_s=0.05) as coordinator:
            await until_joined(coordinator, 1, 1)
            async with Traffic([coordinator]) as traffic:
                await traffic.goes_on()
                names.records[f"{role}s"] = list(changing)
                await assert_eventually(lambda: all(map(has_worked, changing)), 30.0)
                for leaving in changing[:2]:
                    if is_killed:
                        await leaving.stop()
                    names.records[f"{role}s"].remove(leaving)
                    await traffic.goes_on()
                await until_joined(coordinator, 1, 1)
                await traffic.goes_on()
            await assert_eventually(lambda: len(coordinator.pool.links) == 2)
            await _assert_nothing_left(coordinator)


async def test_a_new_pool_replaces_the_old_one_under_load() -> None:
    """Every worker of both roles is replaced, and each of the old ones drains."""
    async with workers("target", 4) as targets, workers("draft", 4) as drafts:
        names = Names(targets=targets[:2], drafts=drafts[:2])
        async with running_coordinator(["targets:1"], ["drafts:1"], names, resolve_s=0.05) as coordinator:
            await until_joined(coordinator, 2, 2)
            async with Traffic([coordinator]) as traffic:
                await traffic.goes_on()
                names.records = {"targets": targets[2:], "drafts": drafts[2:]}
                await assert_eventually(lambda: all(map(has_worked, [*targets, *drafts])), 30.0)
                await assert_eventually(
                    lambda: (
                        {link.address for link in coordinator.pool.links}
                        == {worker.address for worker in (*targets[2:], *drafts[2:])}
                    ),
                    30.0,
                )
                await traffic.goes_on()


async def test_a_name_that_stops_resolving_keeps_its_workers_while_they_are_reached() -> None:
    async with workers("target", 2) as targets:
        names = Names(targets=targets)
        async with running_coordinator(["targets:1"], [], names, resolve_s=0.01) as coordinator:
            await until_joined(coordinator, 2, 0)
            for is_down, records in ((True, targets), (False, [])):
                names.is_down, names.records["targets"] = is_down, records
                asked = names.num_asked
                await assert_eventually(lambda asked=asked: names.num_asked > asked + 20)  # type: ignore[misc]
                assert len(coordinator.pool.targets.open) == 2
                await ask_all(coordinator)
            await targets[0].stop()
            await assert_eventually(lambda: [link.address for link in coordinator.pool.links] == [targets[1].address])
            await ask_all(coordinator)
            names.records["targets"] = targets
            await targets[0].start()
            await until_joined(coordinator, 2, 0)


@pytest.mark.parametrize("role", ["target", "draft"])
async def test_two_coordinators_share_the_pools(role: str) -> None:
    """Workers of one role are lost and come back, one after the other, while both coordinators have work."""
    async with workers("target", 2) as targets, workers("draft", 2) as drafts:
        addresses = [[worker.address for worker in pool] for pool in (targets, drafts)]
        async with running_coordinator(*addresses) as one, running_coordinator(*addresses) as other:
            await asyncio.gather(until_joined(one, 2, 2), until_joined(other, 2, 2))
            async with Traffic([one, other]) as traffic:
                await assert_eventually(lambda: all(map(has_worked, [*targets, *drafts])), 30.0)
                for worker in {"target": targets, "draft": drafts}[role]:
                    await worker.stop()
                    await traffic.goes_on()
                    await worker.start()
                    await asyncio.gather(until_joined(one, 2, 2), until_joined(other, 2, 2))
                    await assert_eventually(lambda worker=worker: has_worked(worker), 30.0)  # type: ignore[misc]


async def test_a_lost_target_is_left_for_another_at_any_token() -> None:
    """It dies after each of the first tokens; greedy text is the undisturbed run's, no token comes twice."""
    async with workers("target", 2) as targets, workers("draft", 1) as drafts:
        addresses = [[worker.address for worker in pool] for pool in (targets, drafts)]
        async with running_coordinator(*addresses) as coordinator:
            for index in range(0, 20, 4):
                await until_joined(coordinator, 2, 1)
                await _kill_after(coordinator, targets, index)


async def _kill_after(coordinator: Coordinator, targets: list[LocalWorker], num_tokens: int) -> None:
    call, tokens, lost = coordinator.call(PROMPTS[0], NUM_TOKENS, k=1), list[int](), None
    while (chunk := await call.read()) is not grpc.aio.EOF:
        assert chunk.offset == len(tokens)
        tokens += chunk.token_ids
        if lost is None and len(tokens) > num_tokens:
            lost = next(target for target in targets if target.engine.table.sessions)
            await lost.stop()
    assert lost is not None and tokens == reference(PROMPTS[0], NUM_TOKENS)
    await lost.start()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "drained"])
async def test_the_successor_of_the_only_target_is_found_at_once(is_killed: bool) -> None:
    """Well before names would be looked up again."""
    async with workers("target", 2) as (old, new):
        names = Names(targets=[old])
        async with running_coordinator(["targets:1"], [], names, resolve_s=3600.0) as coordinator:
            await until_joined(coordinator, 1, 0)
            names.records["targets"] = []
            await old.stop(0.0 if is_killed else 300.0)
            await until_joined(coordinator, 0, 0)
            names.records["targets"] = [new]
            await until_joined(coordinator, 1, 0)
            await ask_all(coordinator)
            assert has_worked(new)
