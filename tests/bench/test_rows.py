"""Which rows there are, and how Tandem is asked for its own."""

from __future__ import annotations

import pytest

from tandem.bench.rows import kind_and_length, options, parse_rows
from tandem.client import Lookahead
from tandem.errors import ConfigError


def test_rows_unless_named_are_all_that_the_peers_allow() -> None:
    own = ("transformers", "assisted", "plain", "in-turn:4", "pipelined:4", "adaptive")
    assert parse_rows("", 4, []) == own
    assert parse_rows("", 3, ["vllm"])[-2:] == ("vllm", "vllm-draft:3")
    assert parse_rows("", 4, ["llamacpp"]) == (*own, "llamacpp-f32", "llamacpp-stored")


def test_rows_are_as_named_each_with_its_length() -> None:
    assert parse_rows("plain, in-turn:2,in-turn:8,pipelined", 5, []) == (
        "plain",
        "in-turn:2",
        "in-turn:8",
        "pipelined:5",
    )
    assert kind_and_length("pipelined:5") == ("pipelined", 5) and kind_and_length("plain") == ("plain", 0)


@pytest.mark.parametrize(
    "text",
    ["no-such", "plain,plain", "in-turn:2,in-turn:02", "in-turn:9", "in-turn:0", "in-turn:x", "plain:2", "vllm", ","],
)
def test_wrong_rows_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rows: "):
        parse_rows(text, 4, [])


def test_each_own_row_says_exactly_what_it_wants() -> None:
    assert options("plain") == {"num_draft_tokens": 0}
    assert options("in-turn:3") == {"num_draft_tokens": 3, "lookahead": Lookahead.OFF}
    assert options("pipelined:3") == {"num_draft_tokens": 3, "lookahead": Lookahead.CHAIN}
    assert options("adaptive") == {}
