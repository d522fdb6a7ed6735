"""Sixteen requests at once say what each says alone: all rules, mixed parameters, mixed lengths, joins and leaves.

In float64, where it is exact: a step's other rows change nothing. Families C39, D46, D54, D58.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from harness.carriers import DraftCarrier, TargetCarrier
from harness.generation import Generated, Workers, generate, tiny_engine
from harness.tiny import reference
from harness.virtual_time import run_virtual

from tandem.core.types import Rule, Sampling
from tandem.model.engine import Engine

RULES = (Rule.GREEDY, Rule.REJECTION, Rule.COUPLED)
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.6, top_k=7),
    Sampling(temperature=1.3, top_p=0.8, logprobs=2),
    Sampling(min_p=0.05, repetition_penalty=1.3),
    Sampling(presence_penalty=0.7, frequency_penalty=-0.4, logit_bias={101: 4.0, 32: -100.0}),
)
LENGTHS = (1, 3, 60, 8, 130, 17, 2, 33, 64, 5, 90, 12, 40, 7, 21, 100)
STEP_S = 0.001

Options = dict[str, Any]


def requests(k: int | None, pipelined: bool | None) -> list[Options]:
    """Sixteen different ones; `k`, `pipelined` None: mixed as well."""
    return [request(index, k, pipelined) for index in range(16)]


def request(index: int, k: int | None, pipelined: bool | None) -> Options:
    rule = RULES[index % 3]
    sampling = SAMPLINGS[index % 5]
    if rule is Rule.GREEDY:
        sampling = Sampling(0.0, repetition_penalty=sampling.repetition_penalty, logit_bias=sampling.logit_bias)
    return {
        "prompt": tuple((index * 31 + position * 7) % 256 for position in range(LENGTHS[index])),
        "max_tokens": 5 + (index * 5) % 14,
        "k": (0, 1, 3, 6)[index % 4] if k is None else k,
        "pipelined": index % 8 < 4 if pipelined is None else pipelined,
        "rule": rule,
        "sampling": sampling,
        "seed": 1000 + index,
    }


def workers(draft: str | None, max_step_tokens: int) -> Workers:
    def engine(role: str, name: str) -> Engine:
        made = tiny_engine(role, name, num_blocks=512)
        made._max_step_tokens = max_step_tokens
        return made

    target = TargetCarrier(lambda: engine("target", "target"), step_s=STEP_S)
    draft_carrier = DraftCarrier(lambda: engine("draft", draft), step_s=STEP_S) if draft else None
    return Workers(target, draft_carrier)


async def run(made: Workers, options: list[Options], every_s: float = 0.0) -> list[Generated]:
    """All requests, the i-th `every_s` after the one before; nothing is left behind."""

    async def one(index: int) -> Generated:
        await asyncio.sleep(index * every_s)
        return await generate(made, **options[index])

    async with made.running():
        results = await asyncio.gather(*map(one, range(len(options))))
        await made.settle()
        made.assert_nothing_left()
        return list(results)


@functools.cache
def alone(index: int, draft: str | None, k: int | None, pipelined: bool | None) -> Generated:
    return run_virtual(run_alone(index, draft, k, pipelined))


async def run_alone(index: int, draft: str | None, k: int | None, pipelined: bool | None) -> Generated:
    return (await run(workers(draft, 512), [request(index, k, pipelined)]))[0]


def assert_each_as_alone(results: list[Generated], draft: str | None, k: int | None, pipelined: bool | None) -> None:
    for index, result in enumerate(results):
        solo = alone(index, draft, k, pipelined)
        assert (result.tokens, result.text) == (solo.tokens, solo.text), index
        assert [round(row.logprob, 9) for commit in result.commits for row in commit.logprobs] == [
            round(row.logprob, 9) for commit in solo.commits for row in commit.logprobs
        ]
        assert result.statistics.num_accepted_tokens == solo.statistics.num_accepted_tokens


WAYS: dict[str, tuple[str | None, int | None, bool | None]] = {
    "plain": (None, 0, False),
    "in turn": ("near", 3, False),
    "pipelined": ("near", 3, True),
    "mixed": ("near", None, None),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("max_step_tokens", [24, 512])
def test_sixteen_at_once(way: str, max_step_tokens: int) -> None:
    draft, k, pipelined = WAYS[way]

    async def scenario() -> list[Generated]:
        made = workers(draft, max_step_tokens)
        results = await run(made, requests(k, pipelined))
        if max_step_tokens == 512:
            assert len(made.target.steps) < sum(len(result.commits) for result in results) / 2, "they took turns"
        return results

    results = run_virtual(scenario())
    assert_each_as_alone(results, draft, k, pipelined)
    if draft:
        assert sum(result.statistics.num_accepted_tokens for result in results) > 20
        assert not any(result.statistics.fallbacks for result in results)


@pytest.mark.parametrize("way", WAYS)
def test_one_joins_at_every_step_while_others_leave(way: str) -> None:
    draft, k, pipelined = WAYS[way]
    for every in (1, 3):
        results = run_virtual(run(workers(draft, 40), requests(k, pipelined), every * STEP_S))
        assert_each_as_alone(results, draft, k, pipelined)


def test_greedy_ones_without_parameters_say_what_transformers_says() -> None:
    """An outer reference, so that `alone` cannot be wrong in the same way."""
    prompts = [tuple((index * 31 + position * 7) % 256 for position in range(LENGTHS[index])) for index in range(16)]
    options: list[Options] = [{"prompt": prompt, "max_tokens": 12, "k": 3} for prompt in prompts]
    results = run_virtual(run_greedy(options))
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == reference(prompt, 12)


async def run_greedy(options: list[Options]) -> list[Generated]:
    return await run(workers("near", 48), options)
