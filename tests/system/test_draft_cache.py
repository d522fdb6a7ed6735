"""The draft's cache is right after every outcome of a block. Families B33, D42, D43."""

from __future__ import annotations

import pytest
from harness.carriers import Script
from harness.generation import Generated, Workers, generate, tiny_workers
from harness.tiny import reference
from harness.virtual_time import run_virtual

from tandem.core.ledger import Commit
from tandem.core.types import Origin

TEXT = tuple(b"hello world")
WAYS = {"in turn": False, "pipelined": True}


async def run(workers: Workers, num_tokens: int, k: int, pipelined: bool) -> Generated:
    async with workers.running():
        result = await generate(workers, TEXT, max_tokens=num_tokens, k=k, pipelined=pipelined)
        await workers.settle()
        workers.assert_nothing_left()
        return result


@pytest.mark.parametrize(("num_tokens", "k"), [(60, 1), (61, 2), (60, 4), (63, 4), (64, 8)])
def test_the_target_as_its_own_draft_takes_the_fewest_verifies_in_turn(num_tokens: int, k: int) -> None:
    async def request() -> Generated:
        return await run(tiny_workers("target"), num_tokens, k, pipelined=False)

    result = run_virtual(request())
    assert result.tokens == reference(TEXT, num_tokens)
    assert result.statistics.num_verifies == -(-num_tokens // (k + 1))
    assert result.statistics.num_accepted_tokens == result.statistics.num_draft_tokens
    assert result.statistics.num_rollbacks == 0 and result.statistics.num_wasted_draft_tokens == 0


@pytest.mark.parametrize("way", WAYS)
def test_acceptance_stays_at_100_percent_over_60_rounds(way: str) -> None:
    """A cache that lags by one position shows in the round after a wholly accepted block."""

    async def request() -> Generated:
        return await run(tiny_workers("target"), 180, 2, WAYS[way])

    result = run_virtual(request())
    statistics = result.statistics
    assert result.tokens == reference(TEXT, 180)
    assert statistics.num_verifies >= 60
    assert statistics.num_accepted_tokens == statistics.num_draft_tokens
    assert statistics.num_rollbacks == 0
    if way == "pipelined":  # the prompt's verify has no block; every other one has the ahead block's
        assert statistics.num_ahead_hits == statistics.num_verifies - 1


@pytest.mark.parametrize("script", [[4, 0], [4, 0, 0], [0, 4, 4], [2, 4, 0, 1, 3, 4]], ids=str)
def test_in_turn_a_proposal_is_right_whatever_was_rejected_before(script: list[int]) -> None:
    """Rounds of forced outcomes: each accepts exactly what the script left right, at round 40 as at round 1."""

    async def request() -> Generated:
        workers = tiny_workers("target")
        assert workers.draft is not None
        workers.draft.tamper = Script(256, script)
        return await run(workers, 100, 4, pipelined=False)

    result = run_virtual(request())
    assert result.tokens == reference(TEXT, 100)
    whole = [commit for commit in result.commits[:-2]]
    assert [accepted(commit) for commit in whole] == [script[index % len(script)] for index in range(len(whole))]


def accepted(commit: Commit) -> int:
    return commit.origins.count(Origin.DRAFT)


@pytest.mark.parametrize("script", [[5, 0], [5, 5, 1], [0, 5, 5, 2]], ids=str)
def test_pipelined_a_proposal_is_right_whatever_was_rejected_before(script: list[int]) -> None:
    """Untouched proposals of a perfect draft are accepted whole, whatever became of those before."""

    async def request() -> Generated:
        workers = tiny_workers("target")
        assert workers.draft is not None
        workers.draft.tamper = Script(256, script)
        return await run(workers, 120, 4, pipelined=True)

    result = run_virtual(request())
    assert result.tokens == reference(TEXT, 120)
    outcomes = {accepted(commit) for commit in result.commits[1:-2]}
    assert 4 in outcomes and result.statistics.num_rollbacks > 0
