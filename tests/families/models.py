"""Models by table and by history, drafts of every quality, and the vocabularies that make their ids text."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import torch
from harness.scripted import LogitsOf
from torch import Tensor

VOCAB = 24
LETTERS = tuple(bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz"[:VOCAB])
SYLLABLES = tuple(
    piece.encode()
    for piece in ("a", "b", " ha", "ha", "he", "el", "llo", "o", " w", "or", "ld", "!", "ab", "ba", "bab")
)


def soft(seed: int, vocab_size: int = VOCAB, spread: float = 1.5) -> LogitsOf:
    """Logits that depend on every token so far, and leave most tokens a chance."""

    @functools.cache
    def row(tokens: tuple[int, ...]) -> Tensor:
        draw = random.Random(f"{seed} {tokens}")
        return torch.tensor([spread * draw.gauss(0, 1) for _ in range(vocab_size)], dtype=torch.float64)

    return lambda tokens: row(tuple(tokens))


def never_twice(model: LogitsOf) -> LogitsOf:
    """Like `model`, but says no token again, so that every token of an output has one place."""

    def logits(tokens: Sequence[int]) -> Tensor:
        row = model(tokens).clone()
        row[list(set(tokens))] = -40.0
        return row

    return logits


def without(model: LogitsOf, token: int) -> LogitsOf:
    """Like `model`, but says `token` never."""

    def logits(tokens: Sequence[int]) -> Tensor:
        row = model(tokens).clone()
        row[token] = -torch.inf
        return row

    return logits


def near(target: LogitsOf, other: LogitsOf, share: float = 0.5) -> LogitsOf:
    """Like `target`, with a share of another model."""
    return lambda tokens: target(tokens) + share * other(tokens)


def saying(output: Sequence[int], vocab_size: int = VOCAB, num_prompt: int = 3, sharpness: float = 80.0) -> LogitsOf:
    """Says `output` after a prompt of `num_prompt` tokens, whatever the prompt is; then its last token for ever."""

    def logits(tokens: Sequence[int]) -> Tensor:
        row = torch.zeros(vocab_size, dtype=torch.float64)
        row[output[min(len(tokens) - num_prompt, len(output) - 1)]] = sharpness
        return row

    return logits


TARGET = soft(1)
DRAFTS: dict[str, LogitsOf] = {"good": TARGET, "near": near(TARGET, soft(2)), "bad": soft(3)}


class WordTokenizer:
    """A tokenizer whose ids stand for given bytes."""

    chat_template = None

    def __init__(self, words: Sequence[bytes]) -> None:
        self._words = tuple(words)

    def get_vocab(self) -> dict[str, int]:
        return {f"{index} {word!r}": index for index, word in enumerate(self._words)}

    def encode(self, text: str) -> list[int]:
        """One token for every letter that is a word; others are left out."""
        return [self._words.index(letter.encode()) for letter in text if letter.encode() in self._words]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return b"".join(self._words[token] for token in tokens).decode("utf-8", "replace")
