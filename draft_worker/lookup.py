"""Prompt lookup: the text's own n-grams as a draft. No model, no KV (Saxena 2023; LLMA, Yang et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.core.sessions import Session
from tandem.core.types import Drafted, Propose, Rule, SparseDistribution
from tandem.model.engine import Job

MAX_NGRAM = 8


def continuation(tokens: Sequence[int], num_tokens: int, max_ngram: int = MAX_NGRAM) -> list[int]:
    """What followed the latest earlier occurrence of the longest end of `tokens` that occurs earlier.

    At most `num_tokens`; empty where not even the last token occurs earlier.
    """
    best_len, best_end = 0, 0
    for end in range(len(tokens) - 1, 0, -1):
        length = _match_length(tokens, end, max_ngram)
        if length > best_len:
            best_len, best_end = length, end
        if best_len == max_ngram:
            break
    return list(tokens[best_end : best_end + num_tokens]) if best_len else []


def _match_length(tokens: Sequence[int], end: int, max_ngram: int) -> int:
    """How far tokens[:end] and all of `tokens` agree, counted from their ends."""
    length = 0
    while length < min(end, max_ngram) and tokens[end - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


class LookupJob:
    """Answers at once; needs no forward pass."""

    num_logits = 0

    def __init__(self, item: Propose, session: Session, name: str) -> None:
        self._drafted = tuple(continuation(session.tokens.ids, item.num_tokens))
        self._is_tested = item.call.rule is Rule.REJECTION
        self._name = name
        session.tokens.extend(self._drafted)
        self.pending: list[int] = []
        self.done = False

    def advance(self, logits: torch.Tensor | None) -> Drafted:
        """The block; under rejection with its q, which is all on the one token that could come."""
        self.done = True
        q = tuple(SparseDistribution((token,), (1.0,)) for token in self._drafted) if self._is_tested else ()
        return Drafted(self._drafted, q, self._name, done=True)

    def give_up(self) -> Drafted:
        return Drafted((), drafter=self._name, done=True)


class LookupDrafter:
    """The longest n-gram of the text that was found earlier in it."""

    name = "prompt-lookup"

    def open_job(self, session: Session, item: Propose, keep: int) -> Job:
        return LookupJob(item, session, self.name)
