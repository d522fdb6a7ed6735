"""Prompts that begin alike share the KV blocks of their beginning: on both workers, committed tokens only, one salt.

Families D46-D48.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest
from families.desk import BLOCK_SIZE, RULES, Answer, Ask, Desk, at_desk
from families.models import DRAFTS, TARGET, VOCAB
from harness.carriers import Carrier

from tandem.core.blocks import ROOT, BlockName, BlockPool
from tandem.core.sessions import SessionTable
from tandem.core.types import Rule

COMMON = tuple((7 * index + 3) % VOCAB for index in range(21))
WAYS = [
    Ask(rule=rule, pipelined=pipelined, k=k) for rule in RULES for pipelined, k in ((True, 4), (False, 4), (False, 0))
]


def beginning(first: int, rest: tuple[int, ...], way: Ask = WAYS[0], salt: str = "") -> Ask:
    """A request whose prompt begins with `first` common tokens."""
    return replace(way, prompt=COMMON[:first] + rest, fields={"cache_salt": salt}, max_tokens=14)


def at(scenario: Callable[[Desk], Awaitable[Any]], draft: str = "near") -> Any:
    return at_desk(scenario, TARGET, DRAFTS[draft])


def one_by_one(asks: list[Ask]) -> list[Answer]:
    async def scenario(desk: Desk) -> list[Answer]:
        return [await desk.ask(ask) for ask in asks]

    result: list[Answer] = at(scenario)
    return result


def num_reused(answer: Answer) -> int:
    return int(answer.finish.num_reused_prompt_tokens)


def plans(carrier: Carrier) -> list[Any]:
    model = carrier.engine._model
    return list(getattr(model, "_model", model).plans)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.rule.name.lower()} k={way.k} ahead={way.pipelined}")
def test_a_common_beginning_is_computed_once_and_changes_no_text(way: Ask) -> None:
    asks = [beginning(21, (1, 2), way), beginning(21, (5,), way), beginning(10, (9,) * 9, way), beginning(3, (4,), way)]
    answers = one_by_one(asks)
    assert [num_reused(answer) for answer in answers] == [0, 20, 8, 0]
    for ask, answer in zip(asks, answers, strict=True):
        assert answer.ids == one_by_one([ask])[0].ids, "reuse changed the text"


def test_the_last_prompt_token_is_always_computed() -> None:
    """Even where all of the prompt lies in whole shared blocks; and no more is reported than the prompt has."""
    whole = beginning(20, ())
    assert [num_reused(answer) for answer in one_by_one([whole, whole])] == [0, 16]
    longer = beginning(20, ())

    async def scenario(desk: Desk) -> None:
        first = await desk.ask(longer)
        turn = replace(longer, prompt=longer.prompt + tuple(first.ids) + (3,))
        second = await desk.ask(turn)
        common = len(longer.prompt) + len(first.ids) - 1  # the last token of an output is fed only when stated
        assert num_reused(second) == common // BLOCK_SIZE * BLOCK_SIZE > len(longer.prompt)

    at(scenario)


def test_both_workers_feed_only_what_is_not_shared() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.ask(beginning(21, (1, 2)))
        num_plans = [len(plans(carrier)) for carrier in desk.carriers]
        await desk.ask(beginning(21, (5, 6)))
        for carrier, before in zip(desk.carriers, num_plans, strict=True):
            assert plans(carrier)[before].sequences[0].start == 20

    at(scenario)


def test_sessions_that_run_side_by_side_share_too() -> None:
    """While the first still writes behind what both stand on."""

    async def scenario(desk: Desk) -> list[Answer]:
        first = asyncio.create_task(desk.ask(replace(beginning(21, (1, 2)), max_tokens=40)))
        await asyncio.sleep(0.02)
        rest = await desk.ask_all([beginning(21, (index,)) for index in range(5)])
        assert not first.done()
        return [await first, *rest]

    answers: list[Answer] = at(scenario)
    assert [num_reused(answer) for answer in answers] == [0, 20, 20, 20, 20, 20]
    for index, answer in enumerate(answers[1:]):
        assert answer.ids == one_by_one([beginning(21, (index,))])[0].ids


def test_another_salt_shares_nothing() -> None:
    asks = [beginning(21, (1,), salt=salt) for salt in ("", "one", "two", "one", "")]
    assert [num_reused(answer) for answer in one_by_one(asks)] == [0, 0, 0, 20, 20]

    async def scenario(desk: Desk) -> None:
        await desk.ask(asks[0])
        num_plans = [len(plans(carrier)) for carrier in desk.carriers]
        await desk.ask(asks[1])
        for carrier, before in zip(desk.carriers, num_plans, strict=True):
            assert plans(carrier)[before].sequences[0].start == 0

    at(scenario)


class Registry(BlockPool):
    """Remembers the whole text that each named block ends."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.texts: dict[int, tuple[Hashable, tuple[int, ...]]] = {}  # content id -> salt, text

    def name(self, block: int, name: BlockName) -> int:
        content = super().name(block, name)
        before = self.texts[name.parent][1] if name.parent != ROOT else ()
        self.texts[content] = name.salt, before + name.tokens
        return content


@pytest.mark.parametrize("draft", ["near", "bad"])
@pytest.mark.parametrize("pipelined", [True, False])
def test_only_committed_tokens_are_ever_shared(draft: str, pipelined: bool) -> None:
    """Whatever is drafted, verified and rejected: no name holds a token that no request made final."""

    async def scenario(desk: Desk) -> None:
        pools = []
        for carrier in desk.carriers:
            pools.append(Registry(96, BLOCK_SIZE))
            carrier.engine.table = SessionTable(pools[-1])
        ways = [Ask(rule=rule, pipelined=pipelined, k=8) for rule in RULES]
        asks = [replace(beginning(9, (index,), ways[index % 3]), max_tokens=30) for index in range(6)]
        answers = await desk.ask_all(asks)
        assert sum(answer.stats.num_draft_tokens - answer.stats.num_accepted_tokens for answer in answers) > 50
        finals = [ask.prompt + tuple(answer.ids) for ask, answer in zip(asks, answers, strict=True)]
        for pool in pools:
            assert len(pool.texts) > 20
            for salt, text in pool.texts.values():
                assert salt == "" and any(final[: len(text)] == text for final in finals)

    at(scenario, draft)


def test_what_is_computed_again_is_not_called_reused() -> None:
    """Usage speaks of what was there before the request, not of its own remains after it lost its session."""

    async def scenario(desk: Desk) -> Answer:
        running = asyncio.create_task(desk.ask(Ask(prompt=COMMON, rule=Rule.GREEDY, max_tokens=60, k=0)))
        table = desk.target.engine.table
        for _ in range(4):
            await asyncio.sleep(0.02)
            for session in [session for session in table.sessions.values() if not session.running]:
                table.drop(session.session_id)
        answer = await running
        assert any(plan.sequences[0].start > 1 and len(plan.sequences[0].tokens) > 1 for plan in plans(desk.target)[1:])
        return answer

    assert num_reused(at(scenario)) == 0
