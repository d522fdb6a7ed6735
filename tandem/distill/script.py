"""Who speaks when: the chat template's own tokens around turns that the target writes, the user's included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tandem.errors import ModelError

MAX_USER_TOKENS = 96  # after which the user is cut short, so that the answers get most of a row
OPENING_TOKENS = 2  # of a user's turn: what they are decides what it is about
_MARK = -1
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


class Speakers:
    """Rows of text as they grow, side by side: all state is tensors on one device, [rows].

    What a template has to say between two turns lies in `_lines`, with a mark behind each line; a row that says such a
    line stands at its next token, any other row at a mark.
    """

    def __init__(self, script: Script, num_rows: int, device: torch.device) -> None:
        lines = (_MARK, *script.to_answer, _MARK, *script.to_next, _MARK)
        self._lines = torch.tensor(lines, device=device)
        self._to_answer, self._to_next = 1, 2 + len(script.to_answer)  # where these lines begin
        self._ends = torch.tensor(sorted(script.ends), dtype=torch.int64, device=device)
        self._has_users = bool(script.to_answer)
        self._place = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._turn_len = torch.zeros_like(self._place)
        self._in_answer = torch.full_like(self._place, not self._has_users, dtype=torch.bool)

    @property
    def answering(self) -> Tensor:
        """Which rows' next token is the target's own in an answer."""
        return self._in_answer & (self._lines[self._place] == _MARK)

    @property
    def opening(self) -> Tensor:
        """Which rows' next token is one of the first of a user's turn."""
        return ~self._in_answer & (self._lines[self._place] == _MARK) & (self._turn_len < OPENING_TOKENS)

    def say(self, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The rows' next tokens, and which are the target's own in an answer; `drawn`: what it would say, int64."""
        line, answers = self._lines[self._place], self._in_answer
        free = line == _MARK
        is_over = torch.isin(drawn, self._ends) | (~answers & (self._turn_len >= MAX_USER_TOKENS))
        ends = free & is_over
        begin = torch.where(answers, self._to_next, self._to_answer)
        first = self._lines[begin]
        is_other = answers & (first != drawn)  # an end that the template does not begin its line with: it is learned
        tokens = torch.where(free, torch.where(ends & ~is_other, first, drawn), line)
        following = torch.where(is_other, begin, begin + 1)
        self._place = torch.where(ends, following, torch.where(free, self._place, self._place + 1))
        self._turn_len = torch.where(ends, 0, torch.where(free, self._turn_len + 1, self._turn_len))
        self._in_answer = answers ^ ends if self._has_users else answers
        return tokens, answers & free
