"""Prompt lookup: what it finds, and what it would have brought, against the plainest way to say the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tandem.core.lookup import LONGEST_MATCH, Match, Rehearsal, TextIndex, looked_up
from tandem.core.types import Rule

BLOCK_LEN = 5


def plain_match(tokens: Sequence[int]) -> Match | None:
    """The latest earlier place with the same last four tokens, else the same last two, else the same last one."""
    for size in (4, 2, 1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) >= size and tokens[end - size : end] == tokens[-size:]:
                lengths = (n for n in range(1, min(end, LONGEST_MATCH) + 1) if tokens[end - n : end] == tokens[-n:])
                return Match(max(lengths), end)
    return None


def texts(vocab_size: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(120)]


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("seed", range(3))
def test_the_index_finds_what_a_search_of_the_whole_text_finds(vocab_size: int, seed: int) -> None:
    """At every length, whether the text grew by one token or by several between two questions."""
    text, rng = texts(vocab_size, seed), random.Random(seed)
    growing: list[int] = []
    index = TextIndex(growing)
    while len(growing) < len(text):
        growing += text[len(growing) : len(growing) + rng.randrange(1, 5)]
        assert index.match() == plain_match(growing)


def test_a_text_has_no_match_before_it_repeats_a_token() -> None:
    assert TextIndex([]).match() is None
    assert TextIndex([7]).match() is None
    assert TextIndex([1, 2, 3, 4]).match() is None


@pytest.mark.parametrize("period", range(1, 7))
def test_a_text_that_repeats_itself_goes_on_for_as_long_as_is_asked(period: int) -> None:
    """The continuation runs into its own beginning, where the earlier place is near the end."""
    text = [index % period for index in range(3 * period)]
    match = TextIndex(text).match()
    assert match is not None
    assert match.continuation(text, 16) == tuple((len(text) + index) % period for index in range(16))


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_rehearsal_gives_the_verdicts_that_real_blocks_would_have_had(vocab_size: int, seed: int) -> None:
    """However the commits cut the text: by one token, or by whole blocks."""
    text, rng = texts(vocab_size, seed), random.Random(seed)
    expected, position = [], 10
    while position < len(text) - BLOCK_LEN - 1:
        match = plain_match(text[:position])
        block = match.continuation(text[:position], BLOCK_LEN) if match else ()
        num_right = next((n for n, token in enumerate(block) if token != text[position + n]), len(block))
        expected.append((match.length if match else 0, num_right))
        position += num_right + 1
    growing, decided = text[:10], []
    rehearsal = Rehearsal(growing, BLOCK_LEN)
    while len(growing) < len(text):
        growing += text[len(growing) : len(growing) + rng.randrange(1, 6)]
        results, match = rehearsal.advance()
        assert match == plain_match(growing)
        decided += results
    assert decided[: len(expected)] == expected


@pytest.mark.parametrize("rule", Rule)
def test_a_block_says_of_what_it_was_drawn_where_that_is_tested(rule: Rule) -> None:
    drafted = looked_up((4, 4, 9), rule)
    assert drafted.done and drafted.tokens == (4, 4, 9)
    assert [(q.ids, q.weights) for q in drafted.q] == (
        [((t,), (1.0,)) for t in (4, 4, 9)] if rule is Rule.REJECTION else []
    )
