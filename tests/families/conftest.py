"""The ways a request can go: under which rule, in turn or pipelined."""

from __future__ import annotations

import pytest

from families.desk import RULES, SAME_TEXT, Ask


def _named(way: Ask) -> str:
    return f"{way.rule.name.lower()}, {'pipelined' if way.pipelined else 'in turn'}"


@pytest.fixture(
    params=[Ask(rule=rule, pipelined=pipelined) for rule in RULES for pipelined in (True, False)], ids=_named
)
def way(request: pytest.FixtureRequest) -> Ask:
    """Every rule, both lookaheads."""
    way: Ask = request.param
    return way


@pytest.fixture(
    params=[Ask(rule=rule, pipelined=pipelined) for rule in SAME_TEXT for pipelined in (True, False)], ids=_named
)
def same_text_way(request: pytest.FixtureRequest) -> Ask:
    """The rules under which the text does not depend on the draft, both lookaheads."""
    way: Ask = request.param
    return way
