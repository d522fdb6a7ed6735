"""Layer 4: a coupled text is a function of prompt, parameters and seed. Equal, in float64, to a sampler of a few lines
on transformers' logits: for every block length and lookahead, many at once, over networks that delay, repeat, lose and
restart.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
from harness.carriers import NETWORKS, Misbehaviour
from harness.virtual_time import run_virtual

from exactness import reference, tiny_pair
from exactness.drive import new_call, run
from tandem.core.ledger import Commit, Ledger
from tandem.core.load import Pace
from tandem.core.pacing import Steady
from tandem.core.stopping import Stopping, StopRules
from tandem.core.types import Call, Rule, Sampling

PROMPT = (72, 101, 108, 108, 111)
NUM_TOKENS = 32
NUM_IDS = 256
_AT_ONCE = 3
_FLOAT32 = 1e-6  # logprobs travel so
PACES = [Pace(0), *(Pace(k, ahead) for k, ahead in itertools.product((1, 2, 4, 8), (False, True)))]
SAMPLINGS = {
    "plain": Sampling(logprobs=0),
    "hot and truncated": Sampling(temperature=1.5, top_k=40, top_p=0.95, min_p=0.02, logprobs=3),
    "penalised": Sampling(
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.9,
        logit_bias={65: 4.0, 66: -100.0},
        logprobs=5,
    ),
    "cold": Sampling(temperature=0.4, top_p=0.8, frequency_penalty=1.5, logprobs=1),
}
MIN_TOKENS = {"hot and truncated": 12, "cold": 20}  # and then every eighth id ends the text
ENDS = frozenset(range(0, NUM_IDS, 8))


def call_for(name: str) -> Call:
    seed = list(SAMPLINGS).index(name)
    call = new_call(Rule.COUPLED, SAMPLINGS[name], seed, len(PROMPT) + NUM_TOKENS)
    return replace(call, min_tokens=MIN_TOKENS[name], end_token_ids=ENDS) if name in MIN_TOKENS else call


@cache
def expected(name: str) -> tuple[list[int], list[reference.Row]]:
    call = call_for(name)
    return reference.sample(
        lambda tokens: tiny_pair.logits("target", [tokens])[0, -1].tolist(),
        PROMPT,
        NUM_TOKENS,
        call.sampling,
        call.seed,
        NUM_IDS,
        call.end_token_ids,
        call.min_tokens,
    )


async def generate(workers: object, name: str, number: int, pace: Pace) -> list[Commit]:
    call = replace(call_for(name), session_id=number.to_bytes(16, "big"))
    rules = StopRules(NUM_TOKENS, end_token_ids=call.end_token_ids)
    ledger = Ledger(PROMPT, Stopping(rules, lambda tokens: ""))
    target, draft = workers.target.exchange, workers.draft.exchange  # type: ignore[attr-defined]
    return await run(ledger, call, target, draft, Steady(pace), NUM_TOKENS, draft_wait_s=0.05)


@pytest.mark.parametrize("network", NETWORKS)
def test_every_way_gives_the_reference_text(network: str) -> None:
    """Every pace over every network, each with one of the parameter sets; three requests share their steps."""
    first = list(NETWORKS).index(network)
    names = [list(SAMPLINGS)[(first + index) % len(SAMPLINGS)] for index in range(len(PACES))]
    generated = run_virtual(_generate_all(NETWORKS[network], names))
    for name, pace, commits in zip(names, PACES, generated, strict=True):
        tokens, rows = expected(name)
        assert [token for commit in commits for token in commit.tokens] == tokens, (name, pace)
        _assert_logprobs(commits, tokens, rows)


async def _generate_all(network: Misbehaviour, names: list[str]) -> list[list[Commit]]:
    """One request for each of `names`, at the pace in its place."""
    found = list[list[Commit]]()
    async with tiny_pair.workers(network, seed=1).running() as workers:
        for first in range(0, len(names), _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, len(names)))
            found += await asyncio.gather(*[generate(workers, names[n], n, PACES[n]) for n in numbers])
    return found


def _assert_logprobs(commits: list[Commit], tokens: list[int], rows: list[reference.Row]) -> None:
    told = [logprobs for commit in commits for logprobs in commit.logprobs]
    for token, row, logprobs in zip(tokens, rows, told, strict=True):
        slow = torch.log_softmax(torch.tensor(row, dtype=torch.float64), dim=-1)
        assert logprobs.logprob == pytest.approx(float(slow[token]), rel=_FLOAT32)
        best = slow.topk(len(logprobs.top))
        assert [value for _, value in logprobs.top] == pytest.approx(best.values.tolist(), rel=_FLOAT32)
        assert [token for token, _ in logprobs.top] == best.indices.tolist()


def test_the_texts_are_worth_comparing() -> None:
    """They differ from one another, end at different places, and the draft is neither always right nor always wrong."""
    lengths = {name: len(expected(name)[0]) for name in SAMPLINGS}
    assert len({tuple(expected(name)[0]) for name in SAMPLINGS}) == len(SAMPLINGS)
    assert all(MIN_TOKENS[name] < lengths[name] < NUM_TOKENS for name in MIN_TOKENS), lengths
    commits = run_virtual(_generate_all(NETWORKS["delaying"], ["plain"] * 3))[-1]
    kinds = {origin for commit in commits for origin in commit.origins}
    assert len(kinds) >= 3, kinds
