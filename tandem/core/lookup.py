"""Prompt lookup: the text's own n-grams as a draft (Saxena 2023; LLMA, Yang et al. 2023). No model, no cost.

text    a b c d e ... x c d e          the end c d e occurred before
draft                         f g h    so what followed there may follow here
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.types import Drafted, Rule, SparseDistribution

DRAFTER = "prompt-lookup"
_SIZES = (4, 2, 1)  # of the n-grams that are indexed
LONGEST_MATCH = 16


@dataclass(frozen=True, slots=True)
class Match:
    """The end of a text and an earlier place that it equals."""

    length: int  # tokens that agree, at most LONGEST_MATCH
    end: int  # index behind the earlier occurrence

    def continuation(self, tokens: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """`num_tokens` tokens that follow the earlier occurrence. Where it reaches the end, the text repeats itself."""
        period = len(tokens) - self.end
        return tuple(tokens[self.end + index % period] for index in range(num_tokens))


class TextIndex:
    """Finds where the end of a growing text occurred before."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """`tokens` is read, never copied; it may only grow."""
        self._tokens = tokens
        self._num_indexed = 0
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> index behind its latest occurrence

    def match(self, length: int | None = None) -> Match | None:
        """Of the first `length` tokens, by default of all, with an earlier place: the latest that has the same last
        four tokens, else the same last two, else the same last one.
        """
        length = len(self._tokens) if length is None else length
        self._index_to(length - 1)
        for size in _SIZES:
            end = self._ends.get(tuple(self._tokens[max(length - size, 0) : length]))
            if end is not None:
                return Match(self._agreeing(end, length), end)
        return None

    def _index_to(self, length: int) -> None:
        """The n-grams that end before `length`: the end of the text must not find itself."""
        for end in range(self._num_indexed + 1, length + 1):
            for size in _SIZES:
                if end >= size:
                    self._ends[tuple(self._tokens[end - size : end])] = end
        self._num_indexed = max(self._num_indexed, length)

    def _agreeing(self, end: int, length: int) -> int:
        count = 0
        while count < min(end, LONGEST_MATCH) and self._tokens[end - 1 - count] == self._tokens[length - 1 - count]:
            count += 1
        return count


class Rehearsal:
    """How lookup blocks would have fared on the committed text: exactly, and without verifying one.

    A block is looked up at a position, followed to its first wrong token, and the next one begins behind that.
    """

    def __init__(self, tokens: Sequence[int], block_len: int) -> None:
        """What is in `tokens` now is the prompt: it can be found, it is not rehearsed."""
        self._tokens = tokens
        self._block_len = block_len
        self._index = TextIndex(tokens)
        self._position = len(tokens)
        self._pending: Match | None = None  # of the block at `_position`

    def advance(self) -> tuple[list[tuple[int, int]], Match | None]:
        """(length of the match, tokens that were right) of each block that the text has decided since the last time;
        and the match for the end of the text as it is now.
        """
        results: list[tuple[int, int]] = []
        while self._position < len(self._tokens):
            self._pending = self._pending or self._index.match(self._position)
            num_right = self._num_right(self._pending) if self._pending else 0
            if num_right is None:
                break
            results.append((self._pending.length if self._pending else 0, num_right))
            self._position += num_right + 1
            self._pending = None
        return results, self._index.match()

    def _num_right(self, match: Match) -> int | None:
        """Tokens of the block before its first wrong one; None while that is not known."""
        block = match.continuation(self._tokens[: self._position], self._block_len)
        came = self._tokens[self._position : self._position + self._block_len]
        for index, (drafted, token) in enumerate(zip(block, came, strict=False)):
            if drafted != token:
                return index
        return self._block_len if len(came) == self._block_len else None


def looked_up(tokens: tuple[int, ...], rule: Rule) -> Drafted:
    """Tokens found in the text as a block; under rejection with their q, all of it on the one token that could come."""
    q = tuple(SparseDistribution((token,), (1.0,)) for token in tokens) if rule is Rule.REJECTION else ()
    return Drafted(tokens, q, DRAFTER, done=True)
