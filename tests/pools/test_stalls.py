"""A worker that lives and answers nothing more: its liveness says so, and what it owes goes on elsewhere."""

from __future__ import annotations

import pytest
from harness.services import running_coordinator
from harness.tiny import reference
from harness.waiting import assert_eventually

from pools.fleet import NUM_TOKENS, PROMPTS, ask_all, until_joined, workers


@pytest.mark.parametrize("num_targets", [1, 2])
async def test_a_request_leaves_a_target_whose_liveness_ends(num_targets: int) -> None:
    """For another one, where there is one; else it goes on once that is well again."""
    async with (
        workers("target", num_targets) as targets,
        running_coordinator([target.address for target in targets], []) as coordinator,
    ):
        await until_joined(coordinator, num_targets, 0)
        chunks = aiter(coordinator.call(PROMPTS[0], NUM_TOKENS, k=0))
        tokens = list((await anext(chunks)).token_ids)
        stuck = next(target for target in targets if target.engine.table.sessions)
        stuck.gate.close()
        await assert_eventually(stuck.gate.entered.is_set)
        await stuck._server.set_alive(False)
        await until_joined(coordinator, num_targets - 1, 0)
        if num_targets == 1:
            stuck.gate.released.set()
            await stuck._server.set_alive(True)
        tokens += [token async for chunk in chunks for token in chunk.token_ids]
        assert tokens == reference(PROMPTS[0], NUM_TOKENS)
        stuck.gate.released.set()
        await stuck._server.set_alive(True)
        await until_joined(coordinator, num_targets, 0)
        await ask_all(coordinator)


async def test_a_worker_that_stands_still_is_not_let_in_and_seen() -> None:
    async with workers("target", 2) as (stuck, well):
        await stuck._server.set_alive(False)
        async with running_coordinator([stuck.address, well.address], []) as coordinator:
            await until_joined(coordinator, 1, 0)
            await assert_eventually(lambda: any("stands still" in link.reason for link in coordinator.pool.links))
            assert [status.ready for status in await coordinator.statuses("target")] == [False, True]
            await ask_all(coordinator)
