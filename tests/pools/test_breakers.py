"""Failing workers of a pool are left alone, tried again one call at a time, and taken back. Family I94.

In virtual time, over in-memory carriers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch
from harness import scripted
from harness.carriers import Carrier, silent
from harness.generation import Workers, generate, scripted_workers
from harness.virtual_time import run_virtual

from coordinator.replicas import Replica, Replicas
from tandem.core.breaker import Breaker
from tandem.core.types import Propose, Verify
from tandem.errors import GenerationFault

VOCAB_SIZE, PAUSE_S, PROMPT, NUM_TOKENS = 8, 100.0, (1, 2, 3), 12
MODEL = scripted.whole_history(VOCAB_SIZE, seed=1)
EXPECTED = scripted.greedy(MODEL, PROMPT, NUM_TOKENS)


def pool(*carriers: Carrier) -> Replicas:
    return Replicas([Replica(carrier.exchange, Breaker(PAUSE_S, longest_pause_s=8 * PAUSE_S)) for carrier in carriers])


async def num_calls(workers: Workers, carrier: Carrier, kind: type) -> int:
    """What reaches a worker during six requests, one after the other, each of which gives the text."""
    before = len(carrier.items)
    for _ in range(6):
        assert (await generate(workers, PROMPT, max_tokens=NUM_TOKENS, k=2, pipelined=False)).tokens == EXPECTED
    return sum(isinstance(item, kind) for item in carrier.items[before:])


def test_a_draft_that_does_not_answer_is_left_for_another_and_tried_one_call_at_a_time() -> None:
    async def run() -> None:
        workers, other = scripted_workers(VOCAB_SIZE, MODEL, MODEL), scripted_workers(VOCAB_SIZE, MODEL, MODEL)
        bad, good = workers.draft, other.draft
        assert bad is not None and good is not None
        workers.__dict__["drafts"] = pool(bad, good)
        bad.tamper = silent
        async with workers.running(), good.running():
            calls = sum([await num_calls(workers, bad, Propose) for _ in range(3)])
            assert calls == 3, "as many as open it"
            await asyncio.sleep(PAUSE_S)
            assert [await num_calls(workers, bad, Propose) for _ in range(2)] in ([1, 0], [0, 1])
            bad.tamper = None
            await asyncio.sleep(PAUSE_S)
            assert await num_calls(workers, bad, Propose) == 0, "the second pause is twice as long"
            await asyncio.sleep(PAUSE_S)
            assert sum([await num_calls(workers, bad, Propose) for _ in range(4)]) > 3, "it is back"

    run_virtual(run())


def test_a_target_that_faults_gets_no_more_requests_where_there_is_another() -> None:
    """Each fault ends its request, as it must; three in a row end those that the worker is given."""

    def poisoned(tokens: Sequence[int]) -> torch.Tensor:
        return torch.full((VOCAB_SIZE,), torch.nan, dtype=torch.float64)

    async def run() -> None:
        workers, other = scripted_workers(VOCAB_SIZE, MODEL, None), scripted_workers(VOCAB_SIZE, poisoned, None)
        workers.__dict__["targets"] = pool(workers.target, other.target)
        num_faults = 0
        async with workers.running(), other.running():
            for _ in range(40):
                try:
                    assert (await generate(workers, PROMPT, max_tokens=NUM_TOKENS, k=0)).tokens == EXPECTED
                except GenerationFault:
                    num_faults += 1
            assert num_faults == 3
            assert sum(isinstance(item, Verify) for item in other.target.items) == 3

    run_virtual(run())


def test_a_pool_whose_only_target_faults_still_tries_it() -> None:
    """A breaker chooses between workers; it turns no request away."""
    logits = [MODEL]

    async def run() -> None:
        workers = scripted_workers(VOCAB_SIZE, lambda tokens: logits[-1](tokens), None)
        async with workers.running():
            logits.append(lambda tokens: torch.full((VOCAB_SIZE,), torch.nan, dtype=torch.float64))
            for _ in range(6):
                try:
                    await generate(workers, PROMPT, max_tokens=NUM_TOKENS, k=0)
                except GenerationFault:
                    continue
                raise AssertionError("no fault")
            logits.pop()
            assert (await generate(workers, PROMPT, max_tokens=NUM_TOKENS, k=0)).tokens == EXPECTED

    run_virtual(run())


def test_a_target_without_memory_is_left_for_one_that_has_it() -> None:
    """Together they hold what neither holds alone: all requests run at once, none waits for another's end."""

    async def run() -> None:
        small = {"num_blocks": 2 * (len(PROMPT) + NUM_TOKENS) // scripted.BLOCK_SIZE}
        workers = scripted_workers(VOCAB_SIZE, MODEL, None, **small)
        other = scripted_workers(VOCAB_SIZE, MODEL, None)
        workers.__dict__["targets"] = pool(workers.target, other.target)
        async with workers.running(), other.running():
            results = await asyncio.gather(*(generate(workers, PROMPT, max_tokens=NUM_TOKENS, k=0) for _ in range(16)))
            assert all(result.tokens == EXPECTED for result in results)
            for each in (workers, other):
                await each.settle()
                each.assert_nothing_left()

    run_virtual(run())
