"""A draft that is wrong, slow, silent or dead costs speed, never the text, and its cause is counted.

Families B31, I94, I95.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from harness import carriers
from harness.carriers import Carrier, DeadDraft, DraftCarrier, Tamper
from harness.generation import Generated, Workers, generate, scripted_workers
from harness.scripted import ScriptedModel, draft_engine, greedy, whole_history
from harness.virtual_time import now_ns, run_virtual
from torch import Tensor

from tandem.core.types import Propose, Reply

V = 6
TRUTH = whole_history(V, 1)
PROMPT = (1, 2, 3)
NUM_TOKENS = 40
EXPECTED = greedy(TRUTH, PROMPT, NUM_TOKENS)
WAYS = {"in turn": False, "pipelined": True}
TAMPERS: dict[str, tuple[Tamper, str]] = {
    "silent": (carriers.silent, "timeout"),
    "empty handed": (carriers.empty_handed, "empty"),
    "in a foreign name": (carriers.in_a_foreign_name, "timeout"),
    "talkative": (carriers.talkative, ""),
    "first id that is none": (carriers.out_of_range(V), "malformed"),
    "largest id": (carriers.out_of_range(2**32 - 1), "malformed"),
    "legal and wrong": (carriers.shifted(V), ""),
}


def workers_with(tamper: Tamper | None = None) -> Workers:
    workers = scripted_workers(V, TRUTH, TRUTH)
    assert workers.draft is not None
    workers.draft.tamper = tamper
    return workers


def draft_of(workers: Workers) -> Carrier:
    assert workers.draft is not None
    return workers.draft


def run(make: Callable[[], Workers], pipelined: bool, num_tokens: int = NUM_TOKENS) -> tuple[Generated, Workers]:
    async def request() -> tuple[Generated, Workers]:
        async with make().running() as workers:
            result = await generate(workers, PROMPT, max_tokens=num_tokens, k=4, pipelined=pipelined)
            await workers.settle()
            workers.assert_nothing_left()
            return result, workers

    return run_virtual(request())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", TAMPERS)
def test_a_wrong_draft_costs_a_fallback_by_its_cause_and_not_the_text(kind: str, way: str) -> None:
    tamper, cause = TAMPERS[kind]
    result, workers = run(lambda: workers_with(tamper), WAYS[way])
    assert result.tokens == EXPECTED
    causes = set(result.statistics.fallbacks)
    assert causes <= {cause, "paused"} - {""} and (not cause or cause in causes)
    assert result.duration_s < 10 * workers.draft_wait_s


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["silent", "in a foreign name", "first id that is none", "largest id"])
def test_a_draft_that_is_always_wrong_is_left_alone_after_three_failures(kind: str, way: str) -> None:
    result, workers = run(lambda: workers_with(TAMPERS[kind][0]), WAYS[way])
    statistics = result.statistics
    assert statistics.fallbacks["paused"] > statistics.num_verifies // 2
    calls = sum(isinstance(item, Propose) for item in draft_of(workers).items)
    assert calls <= 8, "it is not asked in every round"


def test_tokens_beyond_those_asked_for_are_dropped() -> None:
    """Family I95."""
    result, _ = run(lambda: workers_with(carriers.talkative), pipelined=False)
    assert all(len(commit.tokens) <= 5 for commit in result.commits)
    assert result.statistics.num_draft_tokens <= 4 * result.statistics.num_verifies


def test_no_draft_stands_that_was_drafted_behind_a_malformed_block() -> None:
    """Its guess is of another position than the token that the empty block gave, even where the two are equal."""

    def monotonous(tokens: Sequence[int]) -> Tensor:
        return TRUTH((0,))

    async def request() -> Generated:
        workers = scripted_workers(V, monotonous, None)
        wide = ScriptedModel(monotonous)  # takes an id more than the target does
        workers.draft = DraftCarrier(lambda: draft_engine(wide, V, now_ns, num_embeddings=V + 1))
        workers.draft.tamper = FirstBlockMalformed()
        async with workers.running():
            return await generate(workers, PROMPT, max_tokens=22, k=4, pipelined=True)

    statistics = run_virtual(request()).statistics
    assert statistics.fallbacks == {"malformed": 1}
    assert statistics.num_verifies == 6
    assert statistics.num_ahead_hits == 4, "all but the one behind the malformed block"


class FirstBlockMalformed:
    """Its first proposal is a right guess and then an id that is none; all others are right."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._num_sent = 0

    def __call__(self, reply: Reply) -> Sequence[Reply]:
        self._first = self._first or reply.number
        self._num_sent += reply.number == self._first
        wrong = reply.number == self._first and self._num_sent > 1
        return carriers.out_of_range(V)(reply) if wrong else (reply,)


@pytest.mark.parametrize("way", WAYS)
def test_a_dead_draft_is_no_reason_to_wait(way: str) -> None:
    def make() -> Workers:
        workers = scripted_workers(V, TRUTH, None)
        workers.draft = DeadDraft(lambda: draft_engine(ScriptedModel(TRUTH), V, now_ns))
        return workers

    result, _ = run(make, WAYS[way])
    plain, _ = run(lambda: scripted_workers(V, TRUTH, None), WAYS[way])
    assert result.tokens == plain.tokens == EXPECTED
    assert result.statistics.fallbacks == {"unavailable": NUM_TOKENS - 2}  # not the prompt's, not the last token's
    assert plain.statistics.fallbacks == {"no_draft": NUM_TOKENS - 2}
    assert result.duration_s == pytest.approx(plain.duration_s)


@pytest.mark.parametrize("way", WAYS)
def test_a_draft_that_comes_back_is_used_again(way: str) -> None:
    """Killed in mid-request, back later with nothing in its memory: the text goes on, the cause is counted."""

    async def request() -> tuple[Generated, int]:
        async with workers_with().running() as workers:
            draft, loop = draft_of(workers), asyncio.get_running_loop()
            loop.call_at(0.012, lambda: draft.break_stream(restart=True, comes_back=False))
            loop.call_at(0.040, draft.connect)
            result = await generate(workers, PROMPT, max_tokens=120, k=4, pipelined=WAYS[way])
            await workers.settle()
            workers.assert_nothing_left()
            return result, len(draft.items)

    result, _ = run_virtual(request())
    assert result.tokens == greedy(TRUTH, PROMPT, 120)
    assert result.statistics.fallbacks["unavailable"] > 0
    last = [len(commit.tokens) for commit in result.commits[-6:-1]]
    assert max(last) == 5, "drafting has not resumed"


def test_a_breaker_that_opened_lets_drafting_resume_after_its_pause() -> None:
    async def request() -> Generated:
        async with workers_with(carriers.silent).running() as workers:
            draft = draft_of(workers)
            mends_at = 3 * workers.draft_wait_s + 0.5
            asyncio.get_running_loop().call_at(mends_at, lambda: setattr(draft, "tamper", None))
            first = await generate(workers, PROMPT, max_tokens=30, k=4)
            assert first.tokens == greedy(TRUTH, PROMPT, 30)
            assert first.statistics.fallbacks["timeout"] == 3 and first.statistics.fallbacks["paused"] > 0
            await asyncio.sleep(2.0)
            return await generate(workers, PROMPT, max_tokens=30, k=4)

    second = run_virtual(request())
    assert not second.statistics.fallbacks
    assert second.statistics.num_accepted_tokens > 20
