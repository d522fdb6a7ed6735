"""The truth of one running request: what is committed, which block is being verified, what is drafted ahead.

    committed  [ prompt ............ output .... ]
    block                                         [ x1 x2 x3 ]               being verified
    ahead                                                     [ g | y1 y2 ]  drafted meanwhile; g guesses the bonus

A verdict commits the accepted tokens and one of the target's own. The ahead block stands iff the whole block was
accepted and the target's token equals g; then g is dropped and the rest is the next block. Otherwise the next call
names the corrected prefix, and both workers fall back to it by themselves.

Pure: no clock, no I/O, no random state. The same verdicts give the same orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.prefix import TokenList, state_prefix
from tandem.core.statistics import Statistics
from tandem.core.stopping import Ending, Stopping
from tandem.core.types import Block, Drafted, Logprobs, Origin, Prefix, Verdict


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """Tokens wanted after the committed ones and the speculated ones."""

    round: int
    speculated: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class VerifyOrder:
    round: int
    block: Block
    ahead_round: int | None


@dataclass(frozen=True, slots=True)
class Commit:
    """What one verdict made final."""

    offset: int  # index of the first token in the output
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    text: str
    logprobs: tuple[Logprobs, ...]
    ending: Ending | None
    next_token: int | None  # the guess an ahead block must begin with; None where none can stand


class Ledger:
    """Owned by one decode loop; see the module's picture."""

    def __init__(self, prompt: Sequence[int], stopping: Stopping, draft_context: int | None = None) -> None:
        self.tokens = TokenList(prompt)
        self.num_prompt_tokens = len(prompt)
        self.statistics = Statistics()
        self._stopping = stopping
        self._draft_context = draft_context
        self._last_round = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    def resume(self, output: Sequence[int]) -> Commit:
        """Takes over output tokens that the caller already has; the commit says whether they end it."""
        cut = self._stopping.cut(output)
        self.tokens.extend(output[: cut.num_tokens])
        return Commit(self.num_output_tokens, (), (), "", (), cut.ending, None)

    def prefix(self, speculated: Sequence[int], start: int) -> Prefix:
        """The committed tokens and `speculated`, to be sent from `start` on."""
        return state_prefix(self.tokens, speculated, self.num_prompt_tokens, start)

    def draft_order(self, block_len: int) -> DraftOrder | None:
        """What to draft from the committed tokens; None where no draft token could become final."""
        return self._order((), min(block_len, self._stopping.num_left - 1))

    def ahead_order(self, block: Block, block_len: int) -> DraftOrder | None:
        """What to draft while `block` is verified: a guess of the target's own token, and a block after it.

        None where there would be nothing but the guess.
        """
        room = min(block_len, self._stopping.num_left - len(block.tokens) - 2)
        return self._order(block.tokens, room + 1, at_least=2)

    def verify_order(self, block: Block, ahead: DraftOrder | None) -> VerifyOrder:
        """The call that verifies `block`; an empty block is plain decoding in a round of its own."""
        number = block.round if block.tokens else self._next_round()
        return VerifyOrder(number, block, ahead.round if ahead else None)

    def settle(self, block: Block, verdict: Verdict) -> Commit:
        """Makes the accepted tokens of `block` and the target's own token final, up to where the output ends."""
        offered = (*block.tokens[: verdict.num_accepted], verdict.next_token)
        offset = self.num_output_tokens
        cut = self._stopping.cut(offered)
        tokens = offered[: cut.num_tokens]
        self.tokens.extend(tokens)
        accepted_all = verdict.num_accepted == len(block.tokens)
        num_accepted = min(verdict.num_accepted, cut.num_tokens)
        self.statistics.verified(len(block.tokens), num_accepted, rolled_back=not accepted_all)
        return Commit(
            offset=offset,
            tokens=tokens,
            origins=_origins(block, verdict)[: cut.num_tokens],
            text=cut.text,
            logprobs=verdict.logprobs[: cut.num_tokens],
            ending=cut.ending,
            next_token=verdict.next_token if accepted_all and cut.ending is None else None,
        )

    def fell_back(self, cause: str) -> None:
        """The next verify goes without the draft that was wanted; the prompt's verify does not count."""
        if self.statistics.num_verifies:
            self.statistics.fallbacks[cause] += 1

    def take_block(self, order: DraftOrder, drafted: Drafted) -> Block:
        """The next block, drafted from the committed tokens; what exceeds the order is dropped."""
        return _block(order, drafted, slice(order.num_tokens))

    def take_ahead(self, order: DraftOrder, drafted: Drafted) -> Block:
        """The next block from an ahead block that stands: all but its first token, which was the guess."""
        self.statistics.num_ahead_hits += len(drafted.tokens) > 1
        return _block(order, drafted, slice(1, order.num_tokens))

    def _order(self, speculated: tuple[int, ...], num_tokens: int, at_least: int = 1) -> DraftOrder | None:
        if self._draft_context is not None:
            num_tokens = min(num_tokens, self._draft_context - len(self.tokens) - len(speculated) + 1)
        return DraftOrder(self._next_round(), speculated, num_tokens) if num_tokens >= at_least else None

    def _next_round(self) -> int:
        self._last_round += 1
        return self._last_round


def _block(order: DraftOrder, drafted: Drafted, span: slice) -> Block:
    """The tokens in `span`, each with its own q; with none, so that the target refuses it, where those do not match."""
    q = drafted.q[span] if len(drafted.q) == len(drafted.tokens) else ()
    return Block(drafted.tokens[span], q, order.round, drafted.drafter)


def _origins(block: Block, verdict: Verdict) -> tuple[Origin, ...]:
    if not block.tokens:
        return (Origin.PLAIN,)
    accepted_all = verdict.num_accepted == len(block.tokens)
    return (Origin.DRAFT,) * verdict.num_accepted + (Origin.BONUS if accepted_all else Origin.CORRECTION,)
