"""The one cut: independent of how tokens come in blocks. Families A1-A11, G82."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from tandem.core.stopping import Cut, Ending, Stopping, StopRules
from tandem.core.types import FinishReason


def decode(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


def split(tokens: Sequence[int], rng: random.Random, longest: int = 6) -> Iterator[Sequence[int]]:
    start = 0
    while start < len(tokens):
        end = start + rng.randrange(1, longest + 1)
        yield tokens[start:end]
        start = end


def run(rules: StopRules, blocks: Iterator[Sequence[int]]) -> tuple[list[int], str, Ending | None]:
    stopping, tokens, text = Stopping(rules, decode), list[int](), ""
    for block in blocks:
        cut = stopping.cut(block)
        tokens += block[: cut.num_tokens]
        text += cut.text
        if cut.ending is not None:
            return tokens, text, cut.ending
    return tokens, text, None


def random_rules(rng: random.Random) -> StopRules:
    stops = tuple("".join(rng.choices("ab🙂", k=rng.randrange(1, 4))) for _ in range(rng.randrange(3)))
    ends = frozenset({ord("c")}) if rng.random() < 0.3 else frozenset[int]()
    return StopRules(rng.choice([3, 10, 1000]), end_token_ids=ends, stops=stops)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_change_neither_text_nor_cut(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        rules = random_rules(rng)
        tokens = "".join(rng.choices("aabé🙂d" + "c" * (rng.random() < 0.3), k=rng.randrange(1, 20))).encode()
        one_by_one = run(rules, split(tokens, rng, longest=1))
        assert run(rules, split(tokens, rng)) == run(rules, iter([tokens])) == one_by_one


@pytest.mark.parametrize("slot", range(6))
@pytest.mark.parametrize("block_len", [1, 2, 5, 6])
def test_the_end_token_cuts_on_every_slot_of_a_block(slot: int, block_len: int) -> None:
    """Families A1, A2: nothing behind it, and it is listed itself but not in the text."""
    tokens = list(b"abcdefghij")
    rules = StopRules(100, end_token_ids=frozenset({tokens[slot]}))
    blocks = (tokens[start : start + block_len] for start in range(0, 10, block_len))
    found, text, ending = run(rules, blocks)
    assert found == tokens[: slot + 1]
    assert text == "abcdefghij"[:slot]
    assert ending == Ending(FinishReason.END_TOKEN, stop_token_id=tokens[slot])


@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_max_tokens_cuts_on_every_slot_of_a_block(max_tokens: int) -> None:
    """Family A7."""
    tokens = list(b"abcdefghij")
    found, text, ending = run(StopRules(max_tokens), iter([tokens[:5], tokens[5:]]))
    assert found == tokens[:max_tokens] and text == "abcdefghij"[:max_tokens]
    assert ending == Ending(FinishReason.MAX_TOKENS)


@pytest.mark.parametrize("end", range(2, 11))
def test_a_stop_string_cuts_on_every_slot_and_across_blocks(end: int) -> None:
    """Families A3, A6, A11: its tokens are listed, the text ends before it."""
    text = "abcdefghij"
    stop = text[end - 2 : end]
    found, shown, ending = run(StopRules(100, stops=(stop,)), iter([list(b"abcde"), list(b"fghij")]))
    assert bytes(found).decode() == text[:end]
    assert shown == text[: end - 2]
    assert ending == Ending(FinishReason.STOP_STRING, stop=stop)


@pytest.mark.parametrize(("max_tokens", "num_tokens", "reason"), [(5, 3, "STOP_STRING"), (2, 2, "MAX_TOKENS")])
def test_of_two_endings_in_one_block_the_earlier_counts(max_tokens: int, num_tokens: int, reason: str) -> None:
    """Family A4."""
    found, _, ending = run(StopRules(max_tokens, stops=("c",)), iter([list(b"abcdef")]))
    assert len(found) == num_tokens and ending is not None and ending.reason is FinishReason[reason]


def test_a_stop_string_completed_by_the_last_token_is_the_reason() -> None:
    _, text, ending = run(StopRules(3, stops=("c",)), iter([list(b"abc")]))
    assert text == "ab" and ending is not None and ending.reason is FinishReason.STOP_STRING


def test_what_was_held_for_a_stop_string_is_given_at_the_end() -> None:
    assert run(StopRules(2, stops=("abc",)), iter([list(b"ab")]))[1] == "ab"
    ends = StopRules(9, stops=("abc",), end_token_ids=frozenset({0}))
    assert run(ends, iter([[97, 98, 0]]))[1] == "ab"


def test_a_full_context_says_so() -> None:
    stopping = Stopping(StopRules(1, full_reason=FinishReason.CONTEXT_FULL), decode)
    assert stopping.cut([97]) == Cut(1, "a", Ending(FinishReason.CONTEXT_FULL))
    assert stopping.num_left == 0
