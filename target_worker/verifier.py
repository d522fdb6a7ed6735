"""verify: one block, one forward pass, one verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tandem.core.rules import judge
from tandem.core.sessions import InvalidCall, Session
from tandem.core.types import Block, Drafted, Propose, Refusal, RefusalReason, Rule, SparseDistribution, Verdict, Verify

MAX_BLOCK = 16


class VerifyJob:
    """Feeds what of prefix and block is not cached, then judges the block by its k + 1 rows of logits.

    fed      [ ... last stated token | x1  x2  x3 ]
    logits                      [ p1   p2  p3  p4 ]     p1 judges x1; p4 gives the bonus
    """

    def __init__(self, item: Verify, session: Session, keep: int, num_pieces: int) -> None:
        self._item = item
        self._num_pieces = num_pieces
        session.tokens.extend(item.block.tokens)
        self._session = session
        self.pending = session.tokens[keep:]
        self.num_logits = len(item.block.tokens) + 1
        self.done = False

    def advance(self, logits: torch.Tensor | None) -> Verdict:
        """The verdict. logits: [k + 1, head rows]."""
        assert logits is not None
        self.done = True
        verdict = judge(self._item, self._session.tokens.ids, logits, self._num_pieces)
        num_reused = self._session.num_reused
        return replace(verdict, num_reused=num_reused) if num_reused else verdict

    def give_up(self) -> Drafted | Refusal:
        return Refusal(RefusalReason.ENDED, "the call's time is up")


class Verifier:
    """Opens verify jobs for one target model."""

    def __init__(self, num_embeddings: int, head_width: int, num_pieces: int, context_length: int) -> None:
        self._num_embeddings = num_embeddings
        self._num_ids = min(num_embeddings, head_width)  # that a block may hold; padding ids are never accepted
        self._num_pieces = num_pieces
        self._context_length = context_length

    def open_job(self, session: Session, item: Verify | Propose, keep: int) -> VerifyJob:
        """Raises InvalidCall for a block or prefix that the model cannot take."""
        if not isinstance(item, Verify):
            raise InvalidCall("a target worker does not propose")
        self._check(item)
        if any(token >= self._num_embeddings for token in session.tokens[keep:]):
            raise InvalidCall("prefix.tokens: an id outside the vocabulary")
        return VerifyJob(item, session, keep, self._num_pieces)

    def _check(self, item: Verify) -> None:
        if len(item.block.tokens) > MAX_BLOCK:
            raise InvalidCall(f"block.tokens: {len(item.block.tokens)} are more than {MAX_BLOCK}")
        if any(token >= self._num_ids for token in item.block.tokens):
            raise InvalidCall("block.tokens: an id outside the vocabulary")
        if item.call.rule is Rule.REJECTION:
            self._check_q(item.block)
        if item.prefix.length + len(item.block.tokens) > self._context_length:
            raise InvalidCall("prefix: longer than the context with its block")

    def _check_q(self, block: Block) -> None:
        if len(block.q) != len(block.tokens):
            raise InvalidCall(f"block.q: {len(block.q)} distributions for {len(block.tokens)} tokens")
        for token, q in zip(block.tokens, block.q, strict=True):
            if not self._is_distribution(q) or token not in q.ids:
                raise InvalidCall("block.q: not a distribution that its token can come from")

    def _is_distribution(self, q: SparseDistribution) -> bool:
        """Ids once each and inside the vocabulary, weights positive and finite; NaN fails the comparison."""
        return (
            len(q.ids) == len(q.weights) == len(set(q.ids))
            and max(q.ids, default=0) < self._num_ids
            and all(0 < weight < math.inf for weight in q.weights)
        )
