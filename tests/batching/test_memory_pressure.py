"""More requests than memory: all finish with the right text, in bounded time, and the oldest is never set back.

Families D51, D52, D55.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from harness.carriers import DELAYING, PROMPT, Misbehaviour
from harness.generation import Generated, Workers, generate, scripted_workers
from harness.scripted import BLOCK_SIZE, greedy, whole_history
from harness.virtual_time import run_virtual

from tandem.core.blocks import BlockPool
from tandem.core.sessions import Session, SessionTable
from tandem.core.types import Refusal, RefusalReason, Verify

V = 6
TRUTH = whole_history(V, 1)
NEAR = whole_history(V, 1, mistakes=0.3)
PROMPT_LEN, MAX_TOKENS = 12, 28
BLOCKS_OF_ONE = -(-(PROMPT_LEN + MAX_TOKENS + 1) // BLOCK_SIZE)
WAYS = {"plain": (0, False), "in turn": (4, False), "pipelined": (4, True)}


class WatchedTable(SessionTable):
    """Counts how often each session's memory is taken from it, and sees to it that it is never the oldest's."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self.preempted: Counter[bytes] = Counter()

    def _newer_to_preempt(self, session: Session, wanted: int) -> tuple[Session, ...]:
        victims = super()._newer_to_preempt(session, wanted)
        for victim in victims:
            self._note(victim)
        return victims

    def _reserve(self, session: Session, num_tokens: int, now: float) -> Any:
        answer = super()._reserve(session, num_tokens, now)
        if isinstance(answer, Refusal) and answer.reason is RefusalReason.PREEMPTED:
            self._note(session)
        return answer

    def _note(self, victim: Session) -> None:
        assert any(other.order < victim.order for other in self.sessions.values()), "the oldest is never preempted"
        assert not victim.is_whole
        self.preempted[victim.session_id] += 1


def prompts(seed: int, count: int = 8) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.choices(range(V), k=PROMPT_LEN)) for _ in range(count)]


def pressed(num_blocks: int, network: Misbehaviour, seed: int, draft: bool = True) -> tuple[Workers, WatchedTable]:
    workers = scripted_workers(
        V, TRUTH, NEAR if draft else None, seed=seed, num_blocks=num_blocks, target_network=network
    )
    table = WatchedTable(BlockPool(num_blocks, BLOCK_SIZE))
    workers.target.engine.table = table
    return workers, table


async def finish_all(workers: Workers, seed: int, way: str, every_s: float) -> list[Generated]:
    k, pipelined = WAYS[way]

    async def one(index: int, prompt: tuple[int, ...]) -> Generated:
        await asyncio.sleep(index * every_s)
        return await generate(workers, prompt, max_tokens=MAX_TOKENS, k=k, pipelined=pipelined)

    async with workers.running():
        results = await asyncio.gather(*(one(*numbered) for numbered in enumerate(prompts(seed))))
        await workers.settle()
        workers.assert_nothing_left()
    return list(results)


@pytest.mark.parametrize("network", [PROMPT, DELAYING], ids=["prompt", "delaying"])
@pytest.mark.parametrize("way", WAYS)
def test_memory_for_one_and_a_half_requests_finishes_eight(way: str, network: Misbehaviour) -> None:
    """Family D52. In bounded time: not much longer than one after the other would take."""
    num_preempted = 0
    for seed in range(4):

        async def scenario(seed: int = seed) -> tuple[list[Generated], WatchedTable, float]:
            workers, table = pressed(BLOCKS_OF_ONE * 3 // 2, network, seed, draft=way != "plain")
            results = await finish_all(workers, seed, way, every_s=(0.0, 0.001, 0.01, 0.1)[seed])
            return results, table, max(result.ended_s for result in results)

        results, table, ended_s = run_virtual(scenario())
        for prompt, result in zip(prompts(seed), results, strict=True):
            assert result.tokens == greedy(TRUTH, prompt, MAX_TOKENS)
        assert max(table.preempted.values(), default=0) <= 3
        longest_round_s = 0.003 + 4 * network.delay_s[1] + (0.02 if way != "plain" else 0)
        assert ended_s < 8 * (MAX_TOKENS + 4) * longest_round_s
        num_preempted += table.preempted.total()
    assert num_preempted > 0, "nothing was under pressure"


@pytest.mark.parametrize("seed", range(3))
def test_the_first_to_come_is_the_first_to_finish_however_many_press(seed: int) -> None:
    """Its text is computed once: no preemption, no prompt stated twice."""

    async def scenario() -> None:
        workers, table = pressed(BLOCKS_OF_ONE * 3 // 2, PROMPT, seed, draft=False)
        results = await finish_all(workers, seed, "plain", every_s=0.004)
        assert results[0].ended_s == min(result.ended_s for result in results)
        verifies = [item for item in workers.target.items if isinstance(item, Verify)]
        first = verifies[0].call.session_id
        assert sum(item.prefix.start == 0 for item in verifies if item.call.session_id == first) == 1
        assert not table.preempted[first]

    run_virtual(scenario())


@pytest.mark.parametrize("draft_blocks", [1, 3, 12])
@pytest.mark.parametrize("way", ["in turn", "pipelined"])
def test_a_draft_without_memory_is_a_fallback_and_the_text_is_the_same(way: str, draft_blocks: int) -> None:
    async def scenario() -> list[Generated]:
        workers = scripted_workers(V, TRUTH, NEAR)
        assert workers.draft is not None
        table = WatchedTable(BlockPool(draft_blocks, BLOCK_SIZE))
        workers.draft.engine.table = table
        results = await finish_all(workers, 5, way, every_s=0.0)
        assert workers.draft.refusals
        return results

    results = run_virtual(scenario())
    for prompt, result in zip(prompts(5), results, strict=True):
        assert result.tokens == greedy(TRUTH, prompt, MAX_TOKENS)
    causes = {cause for result in results for cause in result.statistics.fallbacks}
    assert causes and causes <= {"refused_full", "refused_preempted", "refused_invalid"}, causes


def test_a_large_request_is_not_overtaken_for_ever_by_small_ones() -> None:
    """Who waits for memory is served in the order of arrival; who comes later lines up behind."""

    async def scenario() -> None:
        workers, _ = pressed(16, PROMPT, 0, draft=False)
        large = tuple(random.Random(1).choices(range(V), k=48))
        async with workers.running():
            small = asyncio.create_task(stream_of_small_ones(workers))
            await asyncio.sleep(0.05)
            began = asyncio.get_running_loop().time()
            result = await generate(workers, large, max_tokens=4, k=0)
            assert result.tokens == greedy(TRUTH, large, 4)
            assert asyncio.get_running_loop().time() - began < 1.0
            small.cancel()
            await asyncio.gather(small, return_exceptions=True)

    run_virtual(scenario())


async def stream_of_small_ones(workers: Workers) -> None:
    """Four or so at any time, for a long time: together they always hold some memory."""
    async with asyncio.TaskGroup() as group:
        for index in range(2_000):
            group.create_task(generate(workers, prompts(index, 1)[0], max_tokens=12, k=0))
            await asyncio.sleep(0.008)
