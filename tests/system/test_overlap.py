"""A fake clock shows what runs at the same time, and that nobody waits for a draft for long. Family I94 (slow)."""

from __future__ import annotations

import pytest
from harness.carriers import DraftCarrier, Misbehaviour, TargetCarrier
from harness.generation import Generated, Workers, generate
from harness.scripted import ScriptedModel, draft_engine, greedy, target_engine, whole_history
from harness.virtual_time import now_ns, run_virtual

V = 6
TRUTH = whole_history(V, 1)
PROMPT = (1, 2, 3)
VERIFY_S, DRAFT_S = 0.025, 0.005
NO_DELAY = Misbehaviour(delay_s=(0.0, 0.0))


def workers(verify_s: float = VERIFY_S, draft_s: float = DRAFT_S, wait_s: float = 0.5) -> Workers:
    target = TargetCarrier(lambda: target_engine(ScriptedModel(TRUTH), V, now_ns), NO_DELAY, step_s=verify_s)
    draft = DraftCarrier(lambda: draft_engine(ScriptedModel(TRUTH), V, now_ns), NO_DELAY, step_s=draft_s)
    return Workers(target, draft, draft_wait_s=wait_s)


def run(num_tokens: int, k: int, pipelined: bool, **times: float) -> tuple[Generated, Workers]:
    async def request() -> tuple[Generated, Workers]:
        async with workers(**times).running() as pair:
            return await generate(pair, PROMPT, max_tokens=num_tokens, k=k, pipelined=pipelined), pair

    return run_virtual(request())


def overlap_s(pair: Workers) -> float:
    """Time in which both workers were busy."""
    assert pair.draft is not None
    return sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in pair.target.steps
        for other_begin, other_end in pair.draft.steps
    )


def test_the_ahead_block_is_drafted_while_its_forerunner_is_verified() -> None:
    """k + 1 = 5 draft steps of 5 ms fit beside a verify of 25 ms: a round takes one verify, not 45 ms."""
    result, pair = run(61, 4, pipelined=True)
    rounds = result.statistics.num_verifies
    assert result.tokens == greedy(TRUTH, PROMPT, 61) and rounds == 13
    assert result.duration_s == pytest.approx(rounds * VERIFY_S, rel=0.05)
    assert overlap_s(pair) > 0.9 * (rounds - 1) * VERIFY_S


def test_in_turn_nothing_overlaps() -> None:
    result, pair = run(60, 4, pipelined=False)
    rounds = result.statistics.num_verifies
    assert result.tokens == greedy(TRUTH, PROMPT, 60) and rounds == 12
    assert result.duration_s == pytest.approx(rounds * (VERIFY_S + 4 * DRAFT_S), rel=0.05)
    assert overlap_s(pair) < 1e-3


def test_the_prompt_is_prefilled_on_both_workers_at_once() -> None:
    _, pair = run(10, 2, pipelined=True)
    assert pair.draft is not None
    (target_began, target_ended), (draft_began, _) = pair.target.steps[0], pair.draft.steps[0]
    assert target_began <= draft_began < target_ended


def test_a_draft_that_is_always_late_stops_no_verify_from_committing_a_token() -> None:
    """A step of the draft takes longer than anybody waits: three waits are spent on it, and then it is left alone."""
    wait_s = 0.1
    result, _ = run(60, 4, pipelined=True, draft_s=1.0, wait_s=wait_s)
    assert result.tokens == greedy(TRUTH, PROMPT, 60)
    assert all(commit.tokens for commit in result.commits)
    assert result.statistics.num_verifies == 60
    assert result.duration_s <= 60 * VERIFY_S + 5 * wait_s
    assert result.statistics.fallbacks["timeout"] >= 3
    assert sum(result.statistics.fallbacks.values()) <= 59


def test_a_late_block_is_cut_to_what_has_come() -> None:
    """Tokens travel one by one, so a time-out has a prefix to take."""
    result, _ = run(40, 8, pipelined=False, draft_s=0.02, wait_s=0.1)
    assert result.tokens == greedy(TRUTH, PROMPT, 40)
    assert result.statistics.num_accepted_tokens > 0
    assert result.commits[0].tokens and 1 < len(result.commits[0].tokens) < 9


@pytest.mark.parametrize("draft_s", [0.001, 0.004, 0.009, 0.02, 0.05])
def test_every_verdict_commits_at_least_one_token_however_slow_the_draft(draft_s: float) -> None:
    result, _ = run(40, 4, pipelined=True, draft_s=draft_s)
    assert result.tokens == greedy(TRUTH, PROMPT, 40)
    assert all(commit.tokens for commit in result.commits)
