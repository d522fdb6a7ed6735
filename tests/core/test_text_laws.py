"""Text as a pure function of the token prefix. Families A3, A11, G82."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tandem.core.text import REPLACEMENT, Detokenizer, StopScanner

LETTERS = ["a", "é", "漢", "🙂", " ", "\u0301", "\r\n", "👨‍👩‍👧"]


def decode(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


def pieces(tokens: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(decode)
    return [detokenizer.push(token) for token in tokens]


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_real_text_join_to_it_and_hold_no_half_character(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        text = "".join(rng.choices(LETTERS, k=rng.randrange(20)))
        found = pieces(text.encode())
        assert "".join(found) == text
        assert REPLACEMENT not in "".join(found)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_garbage_join_to_its_text_but_for_a_broken_end(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1500):
        garbage = [rng.choice([rng.randrange(256), rng.randrange(128, 256)]) for _ in range(rng.randrange(1, 40))]
        joined, whole = "".join(pieces(garbage)), decode(garbage)
        assert whole.startswith(joined), garbage
        assert not whole[len(joined) :].strip(REPLACEMENT), garbage


def test_a_character_behind_a_long_run_of_garbage_comes_whole() -> None:
    assert "".join(pieces([0xFF] * 7 + list("é".encode()))) == REPLACEMENT * 7 + "é"


def test_garbage_is_not_held_back_for_ever() -> None:
    assert len("".join(pieces([0xFF] * 100))) >= 90


def test_a_tokenizer_that_looks_at_its_neighbours_is_shown_them() -> None:
    words = {1: "▁Hello", 2: "▁wor", 3: "ld", 4: "▁!"}

    def decode_words(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    detokenizer = Detokenizer(decode_words)
    assert "".join(detokenizer.push(token) for token in (1, 2, 3, 4)) == "Hello world !"


def scan(stops: Sequence[str], parts: Sequence[str]) -> tuple[str, str]:
    """Text before the first stop, and that stop, however the text is cut into parts."""
    scanner, text = StopScanner(stops), ""
    for part in parts:
        scanned = scanner.push(part)
        text += scanned.text
        if scanned.stop:
            return text, scanned.stop
    return text + scanner.flush(), ""


@pytest.mark.parametrize("seed", range(4))
def test_a_stop_string_is_found_wherever_the_pieces_part(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        stops = ["".join(rng.choices("ab", k=rng.randrange(1, 5))) for _ in range(rng.randrange(3))]
        text = "".join(rng.choices("abc", k=rng.randrange(15)))
        letters = scan(stops, list(text))
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        if not ends:
            assert letters == (text, "")
            continue
        found = [stop for stop in stops if stop in text and text.find(stop) + len(stop) == min(ends)]
        assert letters[1] in found, "the stop that is complete first"
        assert letters[0] == text[: text.find(letters[1])]


def test_what_may_become_a_stop_string_is_held_back_and_given_once_it_cannot() -> None:
    scanner = StopScanner(["abc"])
    assert scanner.push("xa").text == "x"
    assert scanner.push("b").text == ""
    assert scanner.push("x").text == "abx"
    assert scanner.push("ab").text == "" and scanner.flush() == "ab" and scanner.flush() == ""
