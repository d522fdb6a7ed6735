"""Scheduling never changes the text: plain = in turn = pipelined = one token at a time.

Families B32, D46, D50-D52, D54, D55, D57.

Most seeds run on scripted models, whose logits depend on every token fed; some on transformers in float64.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from harness.carriers import DELAYING, NETWORKS, PROMPT, Misbehaviour, shifted
from harness.generation import Generated, Workers, generate, scripted_workers, tiny_workers
from harness.scripted import greedy, whole_history
from harness.tiny import reference
from harness.virtual_time import run_virtual

from tandem.core.types import Origin, RefusalReason

V = 6
TRUTH = whole_history(V, 1)
NEAR = whole_history(V, 1, mistakes=0.3)
TEXT = tuple(b"hello world")
WAYS = {"in turn": False, "pipelined": True}
BLOCK_LENGTHS = [1, 2, 4, 8]


def one(make: Callable[[], Workers], prompt: tuple[int, ...], **options: Any) -> Generated:
    """One request from beginning to end, after which nothing is left anywhere."""

    async def run() -> Generated:
        async with make().running() as workers:
            result = await generate(workers, prompt, **options)
            await workers.settle()
            workers.assert_nothing_left()
            return result

    return run_virtual(run())


def scripted(network: Misbehaviour, seed: int, prompt: tuple[int, ...], **options: Any) -> Generated:
    def make() -> Workers:
        return scripted_workers(V, TRUTH, NEAR, target_network=network, draft_network=network, seed=seed)

    return one(make, prompt, **options)


def assert_accounts(result: Generated) -> None:
    """The identities of families A8, H88, H89."""
    statistics = result.statistics
    assert statistics.num_verifies == len(result.commits)
    assert statistics.num_accepted_tokens <= statistics.num_draft_tokens
    drafted = sum(commit.origins.count(Origin.DRAFT) for commit in result.commits)
    assert statistics.num_accepted_tokens == drafted
    cut = sum(commit.origins[-1] is Origin.DRAFT for commit in result.commits)
    assert len(result.tokens) == drafted + statistics.num_verifies - cut
    assert all(a >= b for a, b in pairwise(statistics.num_accepted_per_position))
    offsets = [commit.offset for commit in result.commits]
    assert offsets == [sum(len(commit.tokens) for commit in result.commits[:i]) for i in range(len(offsets))]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("k", BLOCK_LENGTHS)
def test_no_network_changes_the_text(network: str, way: str, k: int) -> None:
    for seed in range(4):
        prompt = tuple(random.Random(seed).choices(range(V), k=seed + 1))
        result = scripted(NETWORKS[network], seed, prompt, max_tokens=25, k=k, pipelined=WAYS[way])
        assert result.tokens == greedy(TRUTH, prompt, 25)
        assert_accounts(result)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("k", BLOCK_LENGTHS)
def test_transformers_says_the_same_whatever_the_block_length(way: str, k: int) -> None:
    result = one(lambda: tiny_workers("near"), TEXT, max_tokens=40, k=k, pipelined=WAYS[way])
    assert result.tokens == reference(TEXT, 40)
    assert result.statistics.num_accepted_tokens > 0 and result.statistics.num_rollbacks > 0
    assert_accounts(result)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("way", WAYS)
def test_transformers_says_the_same_over_any_network(network: str, way: str) -> None:
    seed = list(NETWORKS).index(network)
    chosen = NETWORKS[network]

    def make() -> Workers:
        return tiny_workers("near", target_network=chosen, draft_network=chosen, seed=seed)

    result = one(make, TEXT, max_tokens=40, k=4, pipelined=WAYS[way])
    assert result.tokens == reference(TEXT, 40)


@pytest.mark.parametrize("draft", [None, "draft", "near", "target"])
def test_no_draft_changes_the_text(draft: str | None) -> None:
    """Plain decoding is the same code with empty blocks."""
    result = one(lambda: tiny_workers(draft), TEXT, max_tokens=40, k=4)
    assert result.tokens == reference(TEXT, 40)
    plain = one(lambda: tiny_workers(draft), TEXT, max_tokens=40, k=0)
    assert plain.tokens == reference(TEXT, 40)
    assert plain.statistics.num_verifies == 40 and not plain.statistics.fallbacks


def test_a_first_token_that_is_always_wrong_changes_nothing() -> None:
    """Family B32."""

    async def run() -> Generated:
        workers = scripted_workers(V, TRUTH, TRUTH)
        assert workers.draft is not None
        workers.draft.tamper = shifted(V)
        async with workers.running():
            return await generate(workers, (1, 2), max_tokens=30, k=4, pipelined=False)

    result = run_virtual(run())
    assert result.tokens == greedy(TRUTH, (1, 2), 30)
    assert result.statistics.num_accepted_tokens == 0 and result.statistics.num_verifies == 30


@pytest.mark.parametrize("network", ["delaying", "evicting", "awful"])
def test_requests_side_by_side_say_what_each_says_alone(network: str) -> None:
    """Families D46, D54, D58, C39: some share a prompt's beginning, some are the same."""
    shared = tuple(random.Random(9).choices(range(V), k=30))
    prompts = [shared, shared, (*shared, 1), (*shared, 2, 3), (4,), (5, 5), shared[:7], (*shared[:9], 0)]

    async def run() -> list[Generated]:
        chosen = NETWORKS[network]
        workers = scripted_workers(V, TRUTH, NEAR, target_network=chosen, draft_network=chosen, seed=5)
        async with workers.running():
            calls = [generate(workers, prompt, max_tokens=20, k=1 + i) for i, prompt in enumerate(prompts)]
            results = await asyncio.gather(*calls)
            await workers.settle()
            workers.assert_nothing_left()
            return results

    for prompt, result in zip(prompts, run_virtual(run()), strict=True):
        assert result.tokens == greedy(TRUTH, prompt, 20)


@pytest.mark.parametrize("seed", range(3))
def test_memory_for_half_of_the_requests_serves_all_of_them(seed: int) -> None:
    """Family D52: sessions are preempted and computed again; no result of before comes late."""
    rng = random.Random(seed)
    prompts = [tuple(rng.choices(range(V), k=rng.randrange(3, 20))) for _ in range(8)]

    async def run() -> list[Generated]:
        workers = scripted_workers(V, TRUTH, NEAR, seed=seed, num_blocks=34, target_network=DELAYING)
        async with workers.running():
            results = await asyncio.gather(*(generate(workers, prompt, max_tokens=24, k=4) for prompt in prompts))
            await workers.settle()
            workers.assert_nothing_left()
            assert workers.target.refusals[RefusalReason.PREEMPTED] + workers.target.refusals[RefusalReason.FULL] > 0
            return results

    for prompt, result in zip(prompts, run_virtual(run()), strict=True):
        assert result.tokens == greedy(TRUTH, prompt, 24)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", ["delaying", "awful"])
def test_a_request_cancelled_at_any_time_leaves_nothing_and_harms_no_other(network: str, way: str) -> None:
    """Families D51, D57, I91: cancelled before the first token, in a verify, while waiting for a draft, at the end."""
    expected = greedy(TRUTH, (1, 2, 3), 12)

    async def run(cancel_after_s: float, seed: int) -> None:
        chosen = NETWORKS[network]
        workers = scripted_workers(V, TRUTH, NEAR, target_network=chosen, draft_network=chosen, seed=seed)
        async with workers.running():
            gone = Generated()
            leaving = asyncio.create_task(
                generate(workers, (1, 2, 3), max_tokens=12, k=3, pipelined=WAYS[way], into=gone)
            )
            staying = asyncio.create_task(generate(workers, (1, 2, 3), max_tokens=12, k=3, pipelined=WAYS[way]))
            await asyncio.sleep(cancel_after_s)
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
            assert gone.tokens == expected[: len(gone.tokens)]
            assert (await staying).tokens == expected
            await workers.settle()
            workers.assert_nothing_left()
            after = await generate(workers, (1, 2, 3), max_tokens=12, k=3, pipelined=WAYS[way])
            assert after.tokens == expected

    for step in range(25):
        run_virtual(run(step * 0.02, seed=step))


def test_200_requests_leave_as_many_free_blocks_as_there_were() -> None:
    """Family D50."""

    async def run() -> None:
        workers = scripted_workers(V, TRUTH, NEAR, target_network=PROMPT, draft_network=PROMPT)
        async with workers.running():
            for index in range(200):
                result = await generate(workers, (index % V, 1), max_tokens=3 + index % 5, k=4)
                assert len(result.tokens) == 3 + index % 5
            await workers.settle()
            workers.assert_nothing_left()

    run_virtual(run())
