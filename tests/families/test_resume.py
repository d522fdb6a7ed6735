"""Row 19 of the bad inputs, and prior_output: going on from every index as if the generation had never stopped."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from families.desk import FINGERPRINT, PROMPT_IDS, Ask, Desk, at_desk
from families.models import DRAFTS, LETTERS, SYLLABLES, TARGET, near, never_twice, saying, soft
from families.oracle import END_TOKEN, MAX_TOKENS, STOP_STRING, text_of
from families.test_text import BYTES, IDS, TEXT
from tandem.core.types import Rule
from tandem.errors import InvalidRequest, StateMismatch

PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.8, "presence_penalty": 0.4, "min_p": 0.02}


async def hold_everywhere(desk: Desk, ask: Ask) -> None:
    """From every index the same ids come, and the same pieces of text."""
    whole = await desk.ask(replace(ask, k=0))  # a chunk for every token: where a text can be cut
    given = list(accumulate((len(chunk.text) for chunk in whole.chunks), initial=0))
    for index in range(len(whole.ids)):
        later = await desk.ask(replace(ask, prior=tuple(whole.ids[:index])))
        assert later.ids == whole.ids[index:]
        assert later.text == whole.text[given[index] :]
        assert (later.finish.reason, later.finish.stop) == (whole.finish.reason, whole.finish.stop)


def _sampling(ask: Ask, **others: Any) -> dict[str, Any]:
    return {"temperature": 0.0 if ask.rule is Rule.GREEDY else 0.9, **others}


def test_going_on_from_every_index(same_text_way: Ask) -> None:
    """Positions, penalties, min_tokens and max_tokens go on from the prior output."""

    async def scenario(desk: Desk) -> None:
        ask = replace(same_text_way, sampling=_sampling(same_text_way, **PENALTIES), max_tokens=14)
        await hold_everywhere(desk, ask)
        await hold_everywhere(desk, replace(ask, min_tokens=9, ends=tuple(range(0, 24, 3)), k=2))

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_going_on_within_a_stop_string(same_text_way: Ask) -> None:
    """Row 11: a stop string of which a part, or a part of a piece, lies in the prior output."""

    async def scenario(desk: Desk) -> None:
        for seed in range(2):
            ask = replace(same_text_way, seed=seed, prompt=(1, 2, seed), max_tokens=10)
            text = (await desk.ask(ask)).text
            for start, end in ((2, 5), (4, 10), (7, 9)):
                await hold_everywhere(desk, replace(ask, stops=(text[start:end], text[1:4] + "?")))

    model = soft(5, len(SYLLABLES))
    at_desk(scenario, model, near(model, soft(6, len(SYLLABLES))), words=SYLLABLES)


def test_going_on_within_a_character(same_text_way: Ask) -> None:
    """Row 82: the half that the prior output holds belongs to the first piece."""

    async def scenario(desk: Desk) -> None:
        await hold_everywhere(desk, replace(same_text_way, max_tokens=len(IDS), sampling={"temperature": 0.0}))
        await hold_everywhere(
            desk, replace(same_text_way, max_tokens=len(IDS), stops=("漢",), sampling={"temperature": 0})
        )

    assert len(TEXT) == 4
    at_desk(scenario, saying(IDS, 256), saying(IDS, 256), words=BYTES)


def test_going_on_under_rejection() -> None:
    """The law, not the text: the output goes on to its end, counts and stops include what was there before."""

    async def scenario(desk: Desk) -> None:
        for pipelined in (True, False):
            ask = Ask(rule=Rule.REJECTION, pipelined=pipelined, max_tokens=12)
            whole = (await desk.ask(ask)).ids
            for index in range(12):
                assert len((await desk.ask(replace(ask, prior=tuple(whole[:index])))).ids) == 12 - index

    at_desk(scenario, TARGET, DRAFTS["near"])


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_prior_output_that_has_ended(way: Ask, extra: int) -> None:
    """Row 19: at or past its end token, stop string or max_tokens: one last chunk with finish, no model call."""

    async def scenario(desk: Desk) -> None:
        whole = tuple((await desk.ask(replace(way, max_tokens=12))).ids)
        text = text_of(LETTERS, whole)
        num_items = len(desk.target.items)
        ways = (
            (replace(way, max_tokens=5), MAX_TOKENS),
            (replace(way, ends=whole[4:5]), END_TOKEN),
            (replace(way, stops=(text[3:5],)), STOP_STRING),
        )
        for ask, reason in ways:
            chunks = [chunk async for chunk in desk.service.generate(_message(ask, whole[: 5 + extra]))]
            assert [list(chunk.token_ids) for chunk in chunks] == [[]]
            assert (chunks[0].finish.reason, chunks[0].finish.num_output_tokens) == (reason, 5)
            assert (chunks[0].target_fingerprint, list(chunks[0].prompt_token_ids)) == (FINGERPRINT, list(PROMPT_IDS))
        assert len(desk.target.items) <= num_items + 1  # the first request's release

    at_desk(scenario, never_twice(TARGET), never_twice(DRAFTS["near"]))


def _message(ask: Ask, prior: tuple[int, ...]) -> bytes:
    return replace(ask, prior=prior).message().SerializeToString()


def test_the_fingerprint_must_be_the_same(way: Ask) -> None:
    """Row 20: another target's output is not gone on with; nothing is called."""

    async def scenario(desk: Desk) -> None:
        ask = replace(way, prior=(4, 5), max_tokens=6)
        assert (await desk.ask(replace(ask, fields={"target_fingerprint": FINGERPRINT}))).ids
        num_items = len(desk.target.items)
        for fingerprint in ("", "another", FINGERPRINT + "x"):
            with pytest.raises(StateMismatch):
                await desk.ask(replace(ask, fields={"target_fingerprint": fingerprint}))
        with pytest.raises(InvalidRequest, match="prior_output"):
            await desk.ask(replace(ask, prior=(4, len(LETTERS))))
        assert len(desk.target.items) <= num_items + 1

    at_desk(scenario, TARGET, DRAFTS["near"])
