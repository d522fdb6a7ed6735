"""The one cut: where an output ends, decided before statistics, streaming and usage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.text import Decode, Detokenizer, StopScanner
from tandem.core.types import FinishReason


@dataclass(frozen=True, slots=True)
class StopRules:
    """When an output ends. `max_tokens` counts every output token, prior ones included."""

    max_tokens: int
    full_reason: FinishReason = FinishReason.MAX_TOKENS  # CONTEXT_FULL where the context, not the caller, set the limit
    end_token_ids: frozenset[int] = frozenset()  # end and stop tokens
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    reason: FinishReason
    stop: str = ""
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    num_tokens: int  # of those offered, that belong to the output
    text: str  # that they make certain
    ending: Ending | None


class Stopping:
    """Cuts the tokens of each verdict. Tokens are looked at one by one, so that blocks do not matter."""

    def __init__(self, rules: StopRules, decode: Decode) -> None:
        self.rules = rules
        self.num_tokens = 0
        self._detokenizer = Detokenizer(decode)
        self._scanner = StopScanner(rules.stops)

    @property
    def num_left(self) -> int:
        """Tokens that may still come."""
        return self.rules.max_tokens - self.num_tokens

    def cut(self, tokens: Sequence[int]) -> Cut:
        """How many of `tokens` belong to the output, their text, and the ending if one of them ends it."""
        text, taken = [], 0
        for taken, token in enumerate(tokens, start=1):
            piece, ending = self._push(token)
            text.append(piece)
            if ending is not None:
                return Cut(taken, "".join(text) + ("" if ending.stop else self._scanner.flush()), ending)
        return Cut(taken, "".join(text), None)

    def _push(self, token: int) -> tuple[str, Ending | None]:
        self.num_tokens += 1
        if token in self.rules.end_token_ids:
            return "", Ending(FinishReason.END_TOKEN, stop_token_id=token)
        scanned = self._scanner.push(self._detokenizer.push(token))
        if scanned.stop:
            return scanned.text, Ending(FinishReason.STOP_STRING, stop=scanned.stop)
        if self.num_left <= 0:
            return scanned.text, Ending(self.rules.full_reason)
        return scanned.text, None
