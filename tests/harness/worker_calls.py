"""Calls as a coordinator would state them, for tests that talk to a session table or an engine directly."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.prefix import TokenList, state_prefix
from tandem.core.types import Block, Call, Propose, Rule, Sampling, Verify

GREEDY = Sampling(temperature=0.0)


def session_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def call(session: int, number: int, *, max_length: int = 60, salt: str = "", budget_s: float | None = None) -> Call:
    return Call(session_id(session), number, number, Rule.GREEDY, max_length, sampling=GREEDY, salt=salt,
                budget_s=budget_s)  # fmt: skip


def verify(session: int, number: int, tokens: Sequence[int], block: Sequence[int] = (), start: int = 0) -> Verify:
    """Verifies `block` behind the committed `tokens`, of which those before `start` are not sent."""
    prefix = state_prefix(TokenList(tokens), (), 1, start)
    return Verify(call(session, number), prefix, Block(tuple(block), round=number))


def propose(
    session: int, number: int, tokens: Sequence[int], num_tokens: int, speculated: Sequence[int] = (), start: int = 0
) -> Propose:
    prefix = state_prefix(TokenList(tokens), speculated, 1, start)
    return Propose(call(session, number), prefix, num_tokens)
