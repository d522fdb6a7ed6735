"""propose: draws a block token by token."""

from __future__ import annotations

from typing import Protocol

import torch

from tandem.core.rules import pick_greedy
from tandem.core.sessions import InvalidCall, Session
from tandem.core.types import Drafted, Propose, Refusal, Verify
from tandem.model.engine import Job

MAX_PROPOSAL = 17  # a block of 16 and the guess of the bonus before it


class Drafter(Protocol):
    """A way to draw draft tokens."""

    name: str

    def open_job(self, session: Session, item: Propose, keep: int) -> Job:
        """Starts a proposal on a session whose first `keep` positions are cached."""
        ...


class CausalJob:
    """Feeds what of the prefix is not cached, draws a token from the last row, feeds it, draws the next.

    The last token drawn is not fed: the next call states it, and the last stated token is always fed again.
    """

    def __init__(self, item: Propose, session: Session, keep: int, row_ids: torch.Tensor | None, name: str) -> None:
        self._left = item.num_tokens
        self._session = session
        self._row_ids = row_ids
        self._name = name
        self.pending = session.tokens[keep:]
        self.num_logits = 1
        self.done = False

    def advance(self, logits: torch.Tensor | None) -> Drafted:
        """The token drawn from logits [1, head rows]."""
        assert logits is not None
        (row,) = pick_greedy(logits)
        token = row if self._row_ids is None else int(self._row_ids[row])
        self._session.tokens.extend([token])
        self._left -= 1
        self.done = self._left == 0
        self.pending = [] if self.done else [token]
        return Drafted((token,), drafter=self._name, done=self.done)

    def give_up(self) -> Drafted | Refusal:
        return Drafted((), drafter=self._name, done=True)


class CausalDrafter:
    """A causal language model."""

    name = "model"

    def __init__(self, num_embeddings: int, num_pieces: int, context_length: int, row_ids: torch.Tensor | None) -> None:
        self._num_embeddings = num_embeddings
        self._num_pieces = num_pieces
        self._context_length = context_length
        self._row_ids = row_ids

    def open_job(self, session: Session, item: Propose, keep: int) -> Job:
        if item.prefix.length + item.num_tokens - 1 > self._context_length:
            raise InvalidCall("prefix: longer than the context with the tokens wanted")
        if any(token >= self._num_embeddings for token in session.tokens[keep:]):
            raise InvalidCall("prefix.tokens: an id outside the vocabulary")
        return CausalJob(item, session, keep, self._row_ids, self.name)


class Drafters:
    """Opens proposals with the drafter that each call names."""

    def __init__(self, drafters: list[Drafter]) -> None:
        """The first of `drafters` is the default."""
        self._by_name = {drafter.name: drafter for drafter in drafters}
        self._default = drafters[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def open_job(self, session: Session, item: Verify | Propose, keep: int) -> Job:
        """Raises InvalidCall for a call that no drafter here can take."""
        if not isinstance(item, Propose):
            raise InvalidCall("a draft worker does not verify")
        if not 1 <= item.num_tokens <= MAX_PROPOSAL:
            raise InvalidCall(f"num_tokens: not in [1, {MAX_PROPOSAL}]")
        drafter = self._by_name.get(item.call.drafter) if item.call.drafter else self._default
        if drafter is None:
            raise InvalidCall(f"drafter: {item.call.drafter} is not one of {', '.join(self._by_name)}")
        return drafter.open_job(session, item, keep)
