"""Rows 79 to 81: the log probability of every emitted token is that of its own row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from harness.carriers import Script

from families.desk import Answer, Ask, Desk, at_desk
from families.models import DRAFTS, TARGET
from families.plain import log_softmax, scores_behind
from tandem.core.types import Rule

SAMPLINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "temperature 0.5": {"temperature": 0.5},
    "penalties, bias and bans": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {3: 2.0, 4: -100}},
    "truncated": {"top_k": 2, "top_p": 0.7},  # logprobs are those before truncation
}


def check_logprobs(ask: Ask, answer: Answer, num_top: int) -> None:
    """Against log_softmax of the reference's row, beside each token the most likely ones, best first."""
    output = [*ask.prior, *answer.ids]
    for index, row in enumerate(answer.logprobs, start=len(ask.prior)):
        logs = log_softmax(scores_behind(TARGET, ask, output[:index]))
        best = sorted(range(len(logs)), key=lambda token: -logs[token])[:num_top]
        assert row.logprob == pytest.approx(logs[output[index]], abs=1e-5)
        assert [top.token_id for top in row.top] == best
        assert [top.logprob for top in row.top] == pytest.approx([logs[token] for token in best], abs=1e-5)


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("draft", [None, "near"])
def test_logprobs_are_those_of_the_row(way: Ask, draft: str | None, name: str) -> None:
    """Rows 79, 80, 81: with a draft and without, of draft tokens, corrections and the bonus, cut with the output."""
    sampling = {"temperature": 0.0 if way.rule is Rule.GREEDY else 1.0, **SAMPLINGS[name]}
    if way.rule is Rule.GREEDY:
        sampling["temperature"] = 0.0

    async def scenario(desk: Desk) -> None:
        for num_top, k in ((0, 1), (1, 4), (20, 8)):
            ask = replace(way, k=k, max_tokens=10, sampling={**sampling, "logprobs": num_top})
            answer = await desk.ask(ask)
            check_logprobs(ask, answer, num_top)
            ended = replace(ask, stops=(answer.text[4:6],))
            check_logprobs(ended, await desk.ask(ended), num_top)

    at_desk(scenario, TARGET, DRAFTS[draft] if draft else None)


@pytest.mark.parametrize("right", [(0,), (1,), (2, 0, 8), (8,)], ids=str)
def test_logprobs_where_blocks_are_cut(same_text_way: Ask, right: tuple[int, ...]) -> None:
    """Row 79: in every slot of the block, and after prior output."""

    async def scenario(desk: Desk) -> None:
        ask = replace(same_text_way, max_tokens=10, sampling={"logprobs": 2, **_temperature(same_text_way)})
        answer = await desk.ask(ask)
        check_logprobs(ask, answer, 2)
        for index in (1, 5, 9):
            later = replace(ask, prior=tuple(answer.ids[:index]))
            check_logprobs(later, await desk.ask(later), 2)

    at_desk(scenario, TARGET, TARGET, tamper=Script(24, right))


def _temperature(way: Ask) -> dict[str, float]:
    return {"temperature": 0.0 if way.rule is Rule.GREEDY else 1.0}
