"""Rows 10, 31 to 33 and 95: a draft may answer what it likes; it costs a fallback with a cause, never a token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from harness.carriers import (
    DELAYING,
    Misbehaviour,
    Script,
    Tamper,
    empty_handed,
    in_a_foreign_name,
    out_of_range,
    shifted,
    silent,
    talkative,
)

from families.desk import KS, Answer, Ask, Desk, at_desk
from families.models import DRAFTS, TARGET, VOCAB
from families.plain import plain
from tandem.core.types import Drafted, Refusal, RefusalReason, Reply, Rule, SparseDistribution

Q = SparseDistribution


def _with_q(change: Callable[[int, Q], Q]) -> Tamper:
    """Changes every distribution of a reply, given its token."""

    def tamper(reply: Reply) -> Sequence[Reply]:
        body = reply.body
        if not isinstance(body, Drafted):
            return (reply,)
        q = tuple(change(token, row) for token, row in zip(body.tokens, body.q, strict=False))
        return (replace(reply, body=replace(body, q=q)),)

    return tamper


def _first_weight(weight: float) -> Tamper:
    return _with_q(lambda token, q: Q(q.ids, (weight, *q.weights[1:])))


def _without_q(reply: Reply) -> Sequence[Reply]:
    body = reply.body
    return (replace(reply, body=replace(body, q=())) if isinstance(body, Drafted) else reply,)


def _refusing(reason: RefusalReason) -> Tamper:
    return lambda reply: (replace(reply, body=Refusal(reason, "no")),)


WRONG_IDS = {str(token): out_of_range(token) for token in (VOCAB, VOCAB + 5, 2**31, 2**32 - 1)}
WRONG_Q: dict[str, Tamper] = {
    "token outside the list": _with_q(lambda token, q: Q(tuple((i + (i >= token)) for i in q.ids), q.weights)),
    "duplicated ids": _with_q(lambda token, q: Q((*q.ids, token), (*q.weights, 0.5))),
    "ids beyond the vocabulary": _with_q(lambda token, q: Q((*q.ids, VOCAB), (*q.weights, 0.5))),
    "more ids than weights": _with_q(lambda token, q: Q(q.ids, q.weights[:-1])),
    "fewer ids than weights": _with_q(lambda token, q: Q(q.ids, (*q.weights, 1.0))),
    "no ids": _with_q(lambda token, q: Q((), ())),
    "NaN": _first_weight(math.nan),
    "infinite": _first_weight(math.inf),
    "zero": _first_weight(0.0),
    "negative": _first_weight(-1.0),
    "one too many": lambda reply: (
        [replace(reply, body=replace(reply.body, q=reply.body.q * 2))] if isinstance(reply.body, Drafted) else [reply]
    ),
    "none": _without_q,
}
LAZY: dict[str, Tamper] = {
    "silent": silent,
    "empty-handed": empty_handed,
    "in a foreign name": in_a_foreign_name,
    **{reason.name: _refusing(reason) for reason in RefusalReason},
}
LAWFUL: dict[str, Tamper] = {
    "talkative": talkative,
    "shifted": shifted(VOCAB),
    "never right": Script(VOCAB, (0,)),
    "right once": Script(VOCAB, (1,)),
    "all or nothing": Script(VOCAB, (20, 0)),
}


def _ask_each_k(way: Ask, tamper: Tamper, ks: Sequence[int] = KS) -> list[Answer]:
    async def scenario(desk: Desk) -> list[Answer]:
        return [await desk.ask(replace(way, k=k, max_tokens=12)) for k in ks]

    answers: list[Answer] = at_desk(scenario, TARGET, TARGET, tamper=tamper)
    if way.rule is not Rule.REJECTION:
        assert [answer.ids for answer in answers] == [plain(TARGET, replace(way, max_tokens=12))] * len(ks)
    return answers


@pytest.mark.parametrize("name", WRONG_IDS)
def test_ids_that_no_vocabulary_has(way: Ask, name: str) -> None:
    """Row 31: never indexed, never emitted; the block counts as malformed, and three in a row rest the draft."""
    answers = _ask_each_k(way, WRONG_IDS[name])
    assert sum(answer.fallbacks.get("malformed", 0) for answer in answers) >= 3
    assert not any(answer.stats.num_accepted_tokens for answer in answers)


@pytest.mark.parametrize("name", WRONG_Q)
@pytest.mark.parametrize("pipelined", [True, False])
def test_distributions_that_a_token_cannot_come_from(pipelined: bool, name: str) -> None:
    """Bad q: dropped and counted under rejection; where nothing is tested by q, nothing reads it."""
    answers = _ask_each_k(Ask(rule=Rule.REJECTION, pipelined=pipelined), WRONG_Q[name])
    assert sum(answer.fallbacks.get("malformed", 0) for answer in answers) >= 3
    _ask_each_k(Ask(rule=Rule.COUPLED, pipelined=pipelined), WRONG_Q[name], (4,))


@pytest.mark.parametrize("name", LAZY)
def test_drafts_that_bring_nothing(way: Ask, name: str) -> None:
    """Row 95: no tokens, none in time, another's tokens, or a refusal: plain decoding, each miss with a cause."""
    for answer in _ask_each_k(way, LAZY[name], (1, 4)):
        missed = sum(answer.fallbacks.values())
        assert missed > 0 and answer.stats.num_accepted_tokens == 0


@pytest.mark.parametrize("name", LAWFUL)
def test_drafts_that_are_wrong(same_text_way: Ask, name: str) -> None:
    """Rows 32, 95: too many tokens, or wrong ones from any slot on: the target's text."""
    _ask_each_k(same_text_way, LAWFUL[name])


def test_too_many_tokens_under_rejection() -> None:
    """Row 95: what exceeds the order is not looked at."""
    for pipelined in (True, False):
        for answer in _ask_each_k(Ask(rule=Rule.REJECTION, pipelined=pipelined), talkative):
            assert answer.stats.num_draft_tokens <= 8 * answer.stats.num_verifies


@pytest.mark.parametrize("network", [Misbehaviour(delay_s=(0.3, 0.9)), DELAYING], ids=["late", "delaying"])
def test_drafts_that_are_late(way: Ask, network: Misbehaviour) -> None:
    """Row 95: what does not come in time is done without."""

    async def scenario(desk: Desk) -> list[int]:
        assert desk.draft is not None
        desk.draft.network = network
        return [(await desk.ask(replace(way, k=k, seed=1, max_tokens=10))).ids for k in KS]

    texts = at_desk(scenario, TARGET, DRAFTS["near"])
    if way.rule is not Rule.REJECTION:
        assert texts == [plain(TARGET, replace(way, seed=1, max_tokens=10))] * len(KS)


def test_a_draft_that_was_never_there(way: Ask) -> None:
    """Rows 92, 95: the request is served, and every verify but the prompt's says why it had no draft."""

    async def scenario(desk: Desk) -> Answer:
        return await desk.ask(replace(way, max_tokens=8))

    answer: Answer = at_desk(scenario, TARGET, TARGET, dead_draft=True)
    assert set(answer.fallbacks) == {"unavailable"}
    assert answer.fallbacks["unavailable"] >= 8 - 2  # neither the prompt's verify nor the last token's


@pytest.mark.parametrize("k", KS)
def test_rounds_of_a_perfect_draft(k: int) -> None:
    """Row 33: no bonus is dropped: in turn, n tokens take ceil(n / (k + 1)) rounds under every rule."""

    async def scenario(desk: Desk) -> None:
        for rule in Rule:
            for num_tokens in (1, k + 1, 2 * k + 2, 17):
                ask = Ask(rule=rule, k=k, pipelined=False, max_tokens=num_tokens)
                assert (await desk.ask(ask)).stats.num_verifies == -(-num_tokens // (k + 1))

    at_desk(scenario, TARGET, TARGET)
