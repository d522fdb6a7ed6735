"""Who speaks when: the chat template's own tokens around turns that the target writes, the user's included."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tandem.errors import ModelError

MAX_USER_TOKENS = 96  # after which the user is cut short, so that the answers get most of a row
OPENING_TOKENS = 2  # of a user's turn: what they are decides what it is about
_MARKS = ("\x11first\x11", "\x11second\x11", "\x11third\x11")


@dataclass(frozen=True, slots=True)
class Script:
    """Token ids that surround the turns."""

    start: tuple[int, ...]  # up to where the first turn begins
    to_answer: tuple[int, ...]  # from the end of a user's turn to the answer; empty: there are no users
    to_next: tuple[int, ...]  # from the end of an answer to the next turn
    ends: frozenset[int]


def read_script(tokenizer: Any, ends: frozenset[int]) -> Script:
    """From the chat template; a model without one writes on from its first token.

    Raises ModelError where there is no template and no token to begin with.
    """
    if tokenizer.chat_template:
        return _chat_script(tokenizer, ends)
    begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if begin is None:
        raise ModelError("the target has no chat template, and no BOS or end token to begin with")
    return Script((begin,), (), (begin,), ends)


def _chat_script(tokenizer: Any, ends: frozenset[int]) -> Script:
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False)
    parts = []
    for mark in _MARKS:
        before, found, text = text.partition(mark)
        if not found:
            raise ModelError("the chat template does not show the messages as they are")
        parts.append(tuple(tokenizer(before, add_special_tokens=False)["input_ids"]))
    return Script(parts[0], parts[1], parts[2], ends)


@dataclass(slots=True)
class Speaker:
    """One row of text as it grows."""

    script: Script
    forced: deque[int] = field(default_factory=deque)
    answering: bool = False
    turn_len: int = 0

    def __post_init__(self) -> None:
        self.answering = not self.script.to_answer

    @property
    def opening(self) -> bool:
        """Whether the next token is one of the first of a user's turn."""
        return not (self.answering or self.forced) and self.turn_len < OPENING_TOKENS

    def say(self, drawn: int) -> tuple[int, bool]:
        """The row's next token, and whether it is the target's own in an answer; `drawn`: what the target would say."""
        if self.forced:
            return self.forced.popleft(), False
        answers = self.answering
        if drawn in self.script.ends or not (answers or self.turn_len < MAX_USER_TOKENS):
            return self._end_turn(drawn)
        self.turn_len += 1
        return drawn, answers

    def _end_turn(self, drawn: int) -> tuple[int, bool]:
        answers, self.turn_len = self.answering, 0
        following = deque(self.script.to_next if answers else self.script.to_answer)
        self.answering = not (answers and self.script.to_answer)
        if answers and following[0] != drawn:
            self.forced = following
            return drawn, True
        token = following.popleft()
        self.forced = following
        return token, answers
