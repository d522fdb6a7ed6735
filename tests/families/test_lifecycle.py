"""Section I, and the ends of a request that are not its own: cancels, losses, full queues, equal names."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from families.desk import Answer, Ask, Desk, at_desk
from families.models import DRAFTS, TARGET
from families.plain import plain
from tandem.core.types import Rule
from tandem.errors import DuplicateRequest, Overloaded, Unavailable

FREE = Ask(rule=Rule.COUPLED, max_tokens=12)


async def _ended_by_cancel(task: asyncio.Task[Answer]) -> bool:
    task.cancel()
    (end,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(end, Answer | asyncio.CancelledError), end
    return not isinstance(end, Answer)


def test_cancels_at_any_moment() -> None:
    """Row 91: 200 cancels from before the prefill to behind the last token, while another request runs unchanged."""

    async def scenario(desk: Desk) -> None:
        loop = asyncio.get_running_loop()
        began, expected = loop.time(), plain(TARGET, FREE)
        await desk.ask(FREE)
        span, num_cancelled, num_free = 1.1 * (loop.time() - began), 0, 0
        for index in range(200):
            ask = replace(FREE, seed=index, pipelined=index % 2 == 0)
            task = asyncio.create_task(desk.ask(ask))
            other = asyncio.create_task(desk.ask(FREE)) if index % 10 == 0 else None
            await asyncio.sleep(span * (index // 2) / 100)
            num_cancelled += await _ended_by_cancel(task)
            if other is not None:
                assert (await other).ids == expected
                num_free += 1
        assert 100 < num_cancelled < 200 and num_free == 20
        assert (await desk.ask(FREE)).ids == expected

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_cancels_while_waiting() -> None:
    """Rows 91, 92: a cancelled request leaves the queue at once, one that finds it full is told when to come again."""

    async def scenario(desk: Desk) -> None:
        tasks = [asyncio.create_task(desk.ask(replace(FREE, seed=seed))) for seed in range(3)]
        await asyncio.sleep(0.004)
        with pytest.raises(Overloaded) as full:
            await desk.ask(FREE)
        assert full.value.retry_after_s > 0
        assert await _ended_by_cancel(tasks[1])
        last = desk.ask(FREE)
        assert (await last).ids == plain(TARGET, FREE)
        for seed in (0, 2):
            assert (await tasks[seed]).ids == plain(TARGET, replace(FREE, seed=seed))

    at_desk(scenario, TARGET, TARGET, max_running=1, max_waiting=2)


def test_equal_names() -> None:
    """Row 18 of the bad inputs: the second of that name is turned away, and takes nothing with it."""

    async def scenario(desk: Desk) -> None:
        ask = replace(FREE, fields={"request_id": "mine"})
        first = asyncio.create_task(desk.ask(ask))
        await asyncio.sleep(0.004)
        for same in (ask, replace(ask, max_tokens=3, prompt=(5, 6))):
            with pytest.raises(DuplicateRequest):
                await desk.ask(same)
        assert (await first).ids == plain(TARGET, ask)
        assert (await desk.ask(ask)).ids == plain(TARGET, ask)

    at_desk(scenario, TARGET, TARGET)


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_worker_dies_in_mid_request(same_text_way: Ask, role: str, restart: bool) -> None:
    """Row 94: at any moment; it comes back, with its sessions or without; no token is lost, repeated or changed."""

    async def scenario(desk: Desk) -> None:
        for step in range(0, 12, 2):
            ask = replace(same_text_way, max_tokens=12, k=2, seed=step)
            carrier = desk.draft if role == "draft" else desk.target
            assert carrier is not None
            task = asyncio.create_task(desk.ask(ask))
            await asyncio.sleep(0.002 * step)
            carrier.break_stream(restart)
            assert (await task).ids == plain(TARGET, ask)
            await asyncio.sleep(5.0)
            carrier.engine.table.expire(1e9)  # a release that the broken stream lost is the lease's business

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_a_target_that_does_not_come_back(way: Ask) -> None:
    """Row 94: UNAVAILABLE in bounded time, after chunks that are right."""

    async def scenario(desk: Desk) -> None:
        loop, answer = asyncio.get_running_loop(), Answer()
        task = asyncio.create_task(desk.ask(way, answer))
        await asyncio.sleep(0.012)
        desk.target.break_stream(restart=True, comes_back=False)
        began = loop.time()
        with pytest.raises(Unavailable):
            await task
        assert loop.time() - began < 4.0
        with pytest.raises(Unavailable):
            await desk.ask(way)
        if way.rule is not Rule.REJECTION:
            assert answer.ids == plain(TARGET, way)[: len(answer.ids)] != []

    at_desk(scenario, TARGET, TARGET, target_wait_s=3.0)


def test_a_draft_that_dies_is_used_again(same_text_way: Ask) -> None:
    """Row 94: without it the same tokens, with causes counted; when it is back, drafting goes on."""

    async def scenario(desk: Desk) -> None:
        assert desk.draft is not None
        desk.draft.break_stream(restart=True, comes_back=False)
        alone = await desk.ask(same_text_way)
        assert alone.fallbacks.get("unavailable", 0) > 0 == alone.stats.num_accepted_tokens
        desk.draft.connect()
        again = await desk.ask(same_text_way)
        assert again.ids == alone.ids == plain(TARGET, same_text_way)
        assert again.stats.num_accepted_tokens > 0 and not again.fallbacks

    at_desk(scenario, TARGET, TARGET)
