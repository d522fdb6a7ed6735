"""Text as a pure function of the token prefix and the stop list.

The piece for one more token is what it adds to the text; half a character is held back until its other half comes, and
so is whatever may yet become a stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

REPLACEMENT = "\ufffd"
_MAX_HELD = 8  # tokens: what is still broken then stays broken, but for the end of it
_MAX_HALF = 3  # tokens that half a character can have: whole, it has at most 4 bytes

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Turns a growing token list into pieces of text, never half a character.

    Decodes a window that begins at the last clean border, so that a tokenizer which looks at its neighbours (a leading
    space, a byte fallback) sees them.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._window = 0  # start of the decoded window
        self._read = 0  # tokens whose text has been given

    def push(self, token: int) -> str:
        """The text that `token` makes certain."""
        self._tokens.append(token)
        after = self._decode(self._tokens[self._window :])
        end = self._broken_until(after) if after.endswith(REPLACEMENT) else len(self._tokens)
        if end == self._read:
            return ""
        before = self._decode(self._tokens[self._window : self._read])
        certain = after if end == len(self._tokens) else self._decode(self._tokens[self._window : end])
        self._window, self._read = self._read, end
        return certain[len(before) :]

    def _broken_until(self, after: str) -> int:
        """Tokens whose text stands whatever follows, where `after`, that of the window, ends in half a character."""
        if len(self._tokens) - self._read < _MAX_HELD:
            return self._read
        ends = range(len(self._tokens) - _MAX_HALF, self._read, -1)
        borders = (end for end in ends if after.startswith(self._decode(self._tokens[self._window : end])))
        return next(borders, self._read)


@dataclass(frozen=True, slots=True)
class Scanned:
    text: str  # certain to stand before any stop string
    stop: str = ""  # the stop string that was completed


class StopScanner:
    """Looks for stop strings in pieces of text, across their borders."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: str) -> Scanned:
        """What `piece` makes certain. After a stop string nothing more may be pushed."""
        if not self._stops:
            return Scanned(piece)
        text = self._held + piece
        found = min(((text.find(stop), order) for order, stop in enumerate(self._stops) if stop in text), default=None)
        if found is not None:
            start, order = found
            return Scanned(text[:start], self._stops[order])
        held = self._may_become_stop(text)
        self._held = text[len(text) - held :]
        return Scanned(text[: len(text) - held])

    def flush(self) -> str:
        """What was held back, once nothing can follow."""
        held, self._held = self._held, ""
        return held

    def _may_become_stop(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
