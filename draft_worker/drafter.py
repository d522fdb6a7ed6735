"""propose: draws a block token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from tandem.core.distributions import EmptySupport
from tandem.core.rules import draw
from tandem.core.sessions import InvalidCall, Session
from tandem.core.types import Drafted, Propose, Verify
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

    def __init__(self, item: Propose, session: Session, keep: int, head: Head) -> None:
        self._item = item
        self._num_drawn = 0
        self._session = session
        self._head = head
        self.pending = session.tokens[keep:]
        self.num_logits = 1
        self.done = False

    def advance(self, logits: torch.Tensor | None) -> Drafted:
        """The token drawn from logits [1, head rows]; none, and the end of the block, where all are banned."""
        assert logits is not None
        tokens = self._session.tokens
        try:
            drawn = draw(
                self._item.call,
                tokens.ids,
                self._item.prefix.num_prompt_tokens,
                self._head.widen(logits),
                self._head.num_pieces,
            )
        except EmptySupport:
            self.done = True
            return self.give_up()
        tokens.extend([drawn.token])
        self._num_drawn += 1
        self.done = self._num_drawn == self._item.num_tokens
        self.pending = [] if self.done else [drawn.token]
        return Drafted((drawn.token,), drawn.q, CausalDrafter.name, self.done, self._num_drawn - 1)

    def give_up(self) -> Drafted:
        return Drafted((), drafter=CausalDrafter.name, done=True, offset=self._num_drawn)


@dataclass(frozen=True, slots=True)
class Head:
    """What the rows of a draft's output head stand for."""

    num_pieces: int
    row_ids: torch.Tensor | None = None  # int64 [head rows]: their token ids; None: their indices

    def widen(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits by token id: -inf for tokens that the head lacks. [1, head rows] -> [1, V]."""
        if self.row_ids is None:
            return logits
        wide = logits.new_full((1, self.num_pieces), -torch.inf)
        wide[:, self.row_ids] = logits
        return wide


class CausalDrafter:
    """A causal language model."""

    name = "model"

    def __init__(self, num_embeddings: int, context_length: int, head: Head) -> None:
        self._num_embeddings = num_embeddings
        self._context_length = context_length
        self._head = head

    def open_job(self, session: Session, item: Propose, keep: int) -> Job:
        if item.prefix.length + item.num_tokens - 1 > self._context_length:
            raise InvalidCall("prefix: longer than the context with the tokens wanted")
        if any(token >= self._num_embeddings for token in session.tokens[keep:]):
            raise InvalidCall("prefix.tokens: an id outside the vocabulary")
        return CausalJob(item, session, keep, self._head)


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
