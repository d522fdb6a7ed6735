"""Which draft tokens are sent or tested, decided by looking at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest import MonkeyPatch
from torch import Tensor

from coordinator.workers import Proposal
from draft_worker import drafter
from draft_worker.drafter import CausalJob
from tandem.core import rules
from tandem.core.distributions import EmptySupport
from tandem.core.ledger import DraftOrder, Ledger
from tandem.core.rules import Drawn
from tandem.core.types import Call, Drafted

_LEAST_LIKELY = 0.25


def drops_unlikely(patch: MonkeyPatch) -> None:
    """A token that q finds unlikely is drawn, and then not sent; the block ends before it."""
    real = drafter.draw

    def draw(call: Call, tokens: Sequence[int], num_prompt_tokens: int, logits: Tensor, num_pieces: int) -> Drawn:
        drawn = real(call, tokens, num_prompt_tokens, logits, num_pieces)
        if _likelihood(drawn) < _LEAST_LIKELY:
            raise EmptySupport("dropped")
        return drawn

    patch.setattr(drafter, "draw", draw)


def best_of_two(patch: MonkeyPatch) -> None:
    """Of two tokens drawn, the likelier is sent, with a q that knows nothing of it."""
    real = drafter.draw

    def draw(call: Call, tokens: Sequence[int], num_prompt_tokens: int, logits: Tensor, num_pieces: int) -> Drawn:
        calls = (call, replace(call, seed=call.seed ^ 1))
        return max((real(c, tokens, num_prompt_tokens, logits, num_pieces) for c in calls), key=_likelihood)

    patch.setattr(drafter, "draw", draw)


def late_blocks_dropped(patch: MonkeyPatch) -> None:
    """The draft stops behind an unlikely token, which is lawful by itself. A whole block comes late and is dropped, so
    that whether its first token is tested depends on what it is.
    """
    _stops_early(patch)
    real = Proposal.whole

    async def whole(self: Proposal) -> Drafted:
        drafted = await real(self)
        return Drafted(()) if len(drafted.tokens) >= self.order.num_tokens else drafted

    patch.setattr(Proposal, "whole", whole)


def length_from_flags(patch: MonkeyPatch) -> None:
    """The next block is as long as tokens behind the refused one had passed, and their noise is used again."""
    real_key, real_rows, real_order = rules.noise_key, rules.accept_rows, Ledger.draft_order
    flags = list[bool]()

    def accept_rows(p: Tensor, q: Tensor, tokens: Tensor, keys: Sequence[int]) -> Tensor:
        passed = real_rows(p, q, tokens, keys)
        flags[:] = passed.tolist()
        return passed

    def draft_order(self: Ledger, block_len: int) -> DraftOrder | None:
        order = real_order(self, block_len)
        behind = flags[flags.index(False) + 1 :] if False in flags else []
        flags.clear()
        if order is None or not behind:
            return order
        length = behind.index(False) if False in behind else len(behind)
        return replace(order, num_tokens=min(order.num_tokens, length)) if length else None

    patch.setattr(rules, "noise_key", lambda seed, number, position, purpose: real_key(seed, 0, position, purpose))
    patch.setattr(rules, "accept_rows", accept_rows)
    patch.setattr(Ledger, "draft_order", draft_order)


def _stops_early(patch: MonkeyPatch) -> None:
    real = CausalJob.advance

    def advance(self: CausalJob, logits: Tensor | None) -> Drafted:
        drafted = real(self, logits)
        if not self.done and drafted.tokens and _likelihood(Drawn(drafted.tokens[0], drafted.q)) < _LEAST_LIKELY:
            self.done = True
            drafted = replace(drafted, done=True)
        return drafted

    patch.setattr(CausalJob, "advance", advance)


def _likelihood(drawn: Drawn) -> float:
    q = drawn.q[0]
    return q.weights[q.ids.index(drawn.token)] / sum(q.weights)
