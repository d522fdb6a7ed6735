"""Prompt lookup as a draft worker's drafter: no model, no KV."""

from __future__ import annotations

import torch

from tandem.core.lookup import DRAFTER, TextIndex, looked_up
from tandem.core.sessions import Session
from tandem.core.types import Drafted, Propose
from tandem.model.engine import Job


class LookupJob:
    """Answers at once; needs no forward pass."""

    num_logits = 0

    def __init__(self, item: Propose, session: Session) -> None:
        tokens = session.tokens
        match = TextIndex(tokens.ids).match()
        self._drafted = looked_up(match.continuation(tokens.ids, item.num_tokens) if match else (), item.call.rule)
        tokens.extend(self._drafted.tokens)
        self.pending: list[int] = []
        self.done = False

    def advance(self, logits: torch.Tensor | None) -> Drafted:
        """The block."""
        self.done = True
        return self._drafted

    def give_up(self) -> Drafted:
        return Drafted((), drafter=DRAFTER, done=True)


class LookupDrafter:
    """What followed when the text last ended as it ends now."""

    name = DRAFTER

    def open_job(self, session: Session, item: Propose, keep: int) -> Job:
        return LookupJob(item, session)
