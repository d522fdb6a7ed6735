"""Rows 22 and 25 to 27 of B, and section C: seeds, mixed batches, and texts that nothing but the prompt decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness.carriers import Script

from families.desk import KS, RULES, Ask, Desk, at_desk
from families.models import DRAFTS, TARGET
from families.plain import plain
from tandem.core.types import Rule

HOT = {"temperature": 2.0}


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_text_is_the_plain_text(same_text_way: Ask, draft: str) -> None:
    """Rows 20, 36, 37, 41: for every k, on a cold worker and on a warm one."""
    expected = plain(TARGET, replace(same_text_way, max_tokens=20))

    async def scenario(desk: Desk) -> None:
        for k in (0, *KS):
            ask = replace(same_text_way, k=k, max_tokens=20)
            cold = await desk.ask(replace(ask, fields={"cache_salt": f"of {k} alone"}))
            warm = await desk.ask(replace(ask, fields={"cache_salt": f"of {k} alone"}))
            assert cold.ids == warm.ids == expected

    at_desk(scenario, TARGET, DRAFTS[draft])


def test_a_seed_means_the_same_amid_other_traffic() -> None:
    """Row 25: seed 42 at temperature 2, alone and among seven others, at each k."""

    async def scenario(desk: Desk) -> None:
        for k in KS:
            ask = Ask(rule=Rule.COUPLED, k=k, seed=42, sampling=HOT)
            others = [Ask(rule=rule, k=k, seed=seed, max_tokens=9) for seed, rule in enumerate(RULES)]
            answers = await desk.ask_all([*others, ask, *others, ask])
            assert answers[3].ids == answers[7].ids == plain(TARGET, ask)

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_a_batch_of_all_kinds() -> None:
    """Rows 22, 26: seeded, unseeded, greedy and hot requests in one batch; those with a text of their own keep it."""
    asks = [
        Ask(rule=Rule.GREEDY),
        Ask(rule=Rule.COUPLED, seed=1),
        Ask(rule=Rule.REJECTION, sampling={"temperature": 0.7}),
        Ask(rule=Rule.COUPLED, seed=1, sampling={"temperature": 0.7}, pipelined=False),
        Ask(rule=Rule.GREEDY, k=0),
        Ask(rule=Rule.REJECTION, seed=3, pipelined=False),
    ]

    async def scenario(desk: Desk) -> None:
        answers = await desk.ask_all(asks * 2)
        for ask, answer in zip(asks * 2, answers, strict=True):
            assert ask.rule is Rule.REJECTION or answer.ids == plain(TARGET, ask)

    at_desk(scenario, TARGET, DRAFTS["near"])


@pytest.mark.parametrize("rule", [Rule.COUPLED, Rule.REJECTION])
def test_seeds_differ(rule: Rule) -> None:
    """Row 27: 50 seeds say more than 10 different things."""

    async def scenario(desk: Desk) -> list[tuple[int, ...]]:
        answers = await desk.ask_all([Ask(rule=rule, seed=seed, k=2, max_tokens=3) for seed in range(24)])
        answers += await desk.ask_all([Ask(rule=rule, seed=seed, k=2, max_tokens=3) for seed in range(24, 50)])
        return [tuple(answer.ids) for answer in answers]

    assert len(set(at_desk(scenario, TARGET, DRAFTS["near"]))) > 10


def test_the_seed_that_was_drawn_replays() -> None:
    """Row 25: the first chunk returns the seed in force; with it and the rule, the text comes again."""

    async def scenario(desk: Desk) -> None:
        ask = Ask(rule=Rule.COUPLED, sampling={"seed": None})
        first = await desk.ask(ask)
        again = await desk.ask(replace(ask, sampling={"seed": first.chunks[0].seed}))
        other = await desk.ask(ask)
        assert again.ids == first.ids != other.ids

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_equal_requests_at_once(same_text_way: Ask) -> None:
    """Row 39: eight at once say what one says alone."""

    async def scenario(desk: Desk) -> None:
        answers = await desk.ask_all([same_text_way] * 8)
        assert [answer.ids for answer in answers] == [plain(TARGET, same_text_way)] * 8

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_a_batch_whose_blocks_are_cut_in_different_places(same_text_way: Ask) -> None:
    """Row 58: of three requests one block is wrong at once, one in the middle, one nowhere."""
    asks = [replace(same_text_way, prompt=(1, 2, last)) for last in (3, 4, 5)]

    async def scenario(desk: Desk) -> None:
        for _ in range(3):
            answers = await desk.ask_all(asks)
            assert [answer.ids for answer in answers] == [plain(TARGET, ask) for ask in asks]

    at_desk(scenario, TARGET, TARGET, tamper=Script(24, (0, 2, 9, 9)))
