"""Section F and rows 18, 21 to 23 of B: parameters count in every row of every block, with a draft and without."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from families.desk import KS, Ask, Desk, at_desk
from families.models import DRAFTS, TARGET, VOCAB, near, soft
from families.plain import plain, supports
from tandem.core.types import Rule

END = 6
EAGER = soft(11, spread=2.0)  # its likeliest tokens come again and again, END among them


def _with_end(tokens: Any) -> Any:
    row = EAGER(tokens).clone()
    row[END] += 5.0
    return row


PARAMETERS: dict[str, dict[str, Any]] = {
    "repetition_penalty 1.5": {"repetition_penalty": 1.5},
    "repetition_penalty 0.6": {"repetition_penalty": 0.6},
    "presence_penalty 1.5": {"presence_penalty": 1.5},
    "frequency_penalty 2": {"frequency_penalty": 2.0},
    "frequency_penalty -1.5": {"frequency_penalty": -1.5},
    "logit_bias": {"logit_bias": {3: 3.0, 5: -2.5, 9: -100.0}},
    "min_p 0.2": {"min_p": 0.2},
    "top_k 3": {"top_k": 3},
    "top_p 0.5": {"top_p": 0.5},
    "all": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.7,
        "logit_bias": {2: 1.5, 4: -100.0},
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.05,
    },
}


def _hold(way: Ask, model: Any, drafts: list[Any], ks: tuple[int, ...] = (0, *KS)) -> None:
    """Greedy and coupled: the reference's text. Rejection: nothing that the reference could not say."""
    expected = plain(model, way)

    async def scenario(desk: Desk) -> None:
        for k in ks:
            ids = (await desk.ask(replace(way, k=k))).ids
            if way.rule is Rule.REJECTION:
                assert all(token in support for token, support in zip(ids, supports(model, way, ids), strict=True))
            else:
                assert ids == expected

    for draft in drafts:
        at_desk(scenario, model, draft)


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_row_is_processed(way: Ask, name: str) -> None:
    """Rows 18, 21, 70, 71, 74: each row of a block sees the speculated tokens before it, and every parameter."""
    sampling = dict(PARAMETERS[name])
    if way.rule is not Rule.GREEDY:
        sampling["temperature"] = 0.8
    _hold(replace(way, max_tokens=12, sampling=sampling), TARGET, [DRAFTS["near"]])


@pytest.mark.parametrize("draft", ["good", "bad"])
def test_min_tokens_counts_tokens_and_not_steps(way: Ask, draft: str) -> None:
    """Row 70: the end token is banned in exactly the first rows, wherever a block begins and ends."""
    model = {"good": _with_end, "bad": near(_with_end, soft(12), 3.0)}[draft]
    for min_tokens in (1, 4, 7):
        _hold(replace(way, max_tokens=12, min_tokens=min_tokens, ends=(END,)), _with_end, [model], (0, 2, 8))


def test_parameters_of_one_request_touch_no_other(way: Ask) -> None:
    """Row 73: what one request of three bans, in every place of the batch, the two others may say."""
    banned = {token: -100.0 for token in range(0, VOCAB, 2)}
    free = replace(way, max_tokens=14)
    bound = replace(free, sampling={"logit_bias": banned, "temperature": 0.0 if way.rule is Rule.GREEDY else 1.0})

    async def scenario(desk: Desk) -> None:
        alone = [(await desk.ask(ask)).ids for ask in (free, bound)]
        for place in range(3):
            asks = [free, free, free]
            asks[place] = bound
            answers = await desk.ask_all(asks)
            assert not set(answers[place].ids) & set(banned)
            if way.rule is not Rule.REJECTION:
                assert [answer.ids for answer in answers] == [alone[index == place] for index in range(3)]

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_low_temperatures(way: Ask) -> None:
    """Rows 22, 23: no NaN at any temperature; up to 1e-5 it is greedy, above it nearly so."""
    greedy = plain(TARGET, replace(way, rule=Rule.GREEDY))

    async def scenario(desk: Desk) -> None:
        for temperature, k in itertools.product((0.0, -0.0, 1e-40, 1e-9, 1e-6, 1e-5, 1e-3), (0, 4)):
            answer = await desk.ask(replace(way, k=k, sampling={"temperature": temperature, "logprobs": 3}))
            assert answer.ids == greedy
            values = [top.logprob for row in answer.logprobs for top in row.top]
            assert all(value <= 0 for value in values)  # NaN is not

    at_desk(scenario, TARGET, DRAFTS["near"])
