"""Rows 82, 84 to 87 of G: text of tokens that are parts of characters, in pieces of any size."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from harness.carriers import Script

from families.desk import Ask, Desk, at_desk
from families.models import saying
from families.oracle import ended, text_of
from tandem.core.stopping import Stopping, StopRules

BYTES = tuple(bytes([byte]) for byte in range(256))
TEXT = "a🙂é漢"
IDS = list(TEXT.encode())
REPLACEMENT = "�"


def decode(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


def splits(tokens: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    """Every way to cut `tokens` into blocks."""
    for cuts in itertools.product((False, True), repeat=len(tokens) - 1):
        borders = [0, *(index for index, cut in enumerate(cuts, start=1) if cut), len(tokens)]
        yield [tokens[start:end] for start, end in itertools.pairwise(borders)]


def pieces(blocks: Sequence[Sequence[int]], stops: tuple[str, ...] = (), max_tokens: int = 99) -> list[str]:
    """The text of each block up to the one that ends the output."""
    stopping, texts = Stopping(StopRules(max_tokens, stops=stops), decode), []
    for block in blocks:
        cut = stopping.cut(block)
        texts.append(cut.text)
        if cut.ending is not None:
            break
    return texts


def test_every_split_of_characters_over_blocks() -> None:
    """Row 82: each piece holds what its tokens add, no half character among it."""
    for blocks in splits(IDS):
        texts, seen = pieces(blocks), 0
        for block, text in zip(blocks, texts, strict=True):
            assert text == text_of(BYTES, IDS[: seen + len(block)])[len(text_of(BYTES, IDS[:seen])) :]
            seen += len(block)
        assert "".join(texts) == TEXT


@pytest.mark.parametrize("stop", ["🙂", "é漢", "漢", "a🙂é", "🙂é", "漢!"])
def test_every_split_with_a_stop_string(stop: str) -> None:
    """Rows 11, 82, 84: a stop string of several bytes ends in whichever block its last byte has."""
    whole = ended([*IDS, *b"!?"], BYTES, len(IDS) + 2, stops=(stop,))
    for blocks in splits(IDS):
        assert "".join(pieces([*blocks, list(b"!?")], (stop,), len(IDS) + 2)) == whole.text


@pytest.mark.parametrize("right", [(0,), (1,), (2,), (3,), (1, 0, 2, 4), (9,)], ids=str)
def test_characters_over_real_blocks(same_text_way: Ask, right: tuple[int, ...]) -> None:
    """Rows 82, 85 to 87: through draft, verify and stream, for every k; the chunks know how many tokens they hold."""

    async def scenario(desk: Desk) -> None:
        for k in range(1, 9):
            ask = replace(same_text_way, k=k, max_tokens=len(IDS), sampling={"temperature": 0.0})
            answer = await desk.ask(ask)
            assert (answer.text, answer.ids) == (TEXT, IDS)
            assert not any(REPLACEMENT in chunk.text for chunk in answer.chunks)

    model = saying(IDS, 256)
    at_desk(scenario, model, model, words=BYTES, tamper=Script(256, right))


def test_half_characters_at_the_end() -> None:
    """Row 82: an output that ends in mid-character has no text for the half it got."""
    for length in range(1, len(IDS) + 1):
        (text,) = pieces([IDS[:length]], max_tokens=length)
        assert text == text_of(BYTES, IDS[:length])


def test_bytes_that_are_no_text() -> None:
    """Row 82: random bytes, cut anywhere: the pieces add up to the text, in which whole characters are whole."""
    draw = random.Random(3)
    alphabet = [*b"a", *"🙂é漢".encode(), 0x80, 0xF0, 0xE6, 0xC3, 0xFF]
    for _ in range(3000):
        ids = [draw.choice(alphabet) for _ in range(draw.randrange(1, 30))] + [*b"z"]
        borders = sorted({0, len(ids), *(draw.randrange(len(ids)) for _ in range(6))})
        blocks = [ids[start:end] for start, end in itertools.pairwise(borders)]
        assert "".join(pieces(blocks)) == "".join(pieces([[token] for token in ids])) == decode(ids)


def test_a_character_behind_broken_bytes() -> None:
    """Row 82: however many bytes before it are none, a character that comes in parts is whole."""
    for num_broken in range(12):
        ids = [*[0x80] * num_broken, *"🙂漢".encode(), *b"z"]
        assert "".join(pieces([[token] for token in ids])) == decode(ids)
