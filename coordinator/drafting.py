"""Where the next block comes from: the text itself, the ahead block if it stands, a new proposal, or nowhere."""

from __future__ import annotations

from coordinator.workers import DraftSession, Proposal
from tandem.core.ledger import DraftOrder, Ledger
from tandem.core.load import Pace
from tandem.core.lookup import looked_up
from tandem.core.types import Block, Drafted, Rule


class Drafting:
    """The draft side of one decode loop. A draft that fails costs a fallback, never the request."""

    def __init__(self, ledger: Ledger, session: DraftSession | None, rule: Rule) -> None:
        """`session` is None where the coordinator has no draft worker."""
        self._ledger = ledger
        self._session = session
        self._rule = rule
        self._whole_round = 0  # of the last block that came whole

    def start_ahead(self, pace: Pace, block: Block) -> Proposal | None:
        """Has the block after `block` drafted, if the pace says so and a draft is worth trying."""
        return self._start(self._ledger.ahead_order(block, pace.num_tokens)) if pace.ahead else None

    def looked_up(self, tokens: tuple[int, ...], ahead: Proposal | None) -> Block | None:
        """A block of `tokens`, found in the text, in place of the ahead block; None without tokens or room for them."""
        order = self._ledger.draft_order(len(tokens)) if tokens else None
        if order is None:
            return None
        self.drop(ahead)
        return self._ledger.take_block(order, looked_up(tokens, self._rule))

    async def next_block(self, pace: Pace, ahead: Proposal | None, next_token: int | None) -> Block:
        """The block after a verdict whose ahead block must begin with `next_token` (None: cannot stand)."""
        if ahead is None:
            return await self.new_block(pace)
        if next_token is None:
            self.drop(ahead)
            return await self.new_block(pace)
        guess = await ahead.first()
        if guess == next_token:
            return await self._rest_of(ahead)
        self.drop(ahead, rolled_back=guess is not None)
        return await self.new_block(pace) if guess is not None else self._fall_back(ahead.cause)

    async def new_block(self, pace: Pace) -> Block:
        """A block drafted from the committed tokens, in turn."""
        order = self._ledger.draft_order(pace.num_tokens)
        if order is None:
            return Block()
        proposal = self._start(order)
        if proposal is None:
            return self._fall_back(self._why_not())
        drafted = await self._whole(proposal)
        return self._ledger.take_block(order, drafted) if drafted.tokens else self._fall_back(proposal.cause)

    def drop(self, ahead: Proposal | None, rolled_back: bool = False) -> None:
        """Wants no more of an ahead block."""
        if ahead is not None:
            self._ledger.statistics.ahead_dropped(ahead.num_arrived(), rolled_back)
            ahead.close()

    def judged(self, block: Block, verified: Block) -> bool:
        """Whether the target found `block` well formed; else it verified another one in its place.

        Only a block that came whole and is well formed speaks for the draft worker.
        """
        if self._session is None:
            return True
        if verified is not block:
            self._ledger.statistics.num_wasted_draft_tokens += len(block.tokens)
            self._ledger.fell_back("malformed")
            self._session.failed()
        elif block.tokens and block.round == self._whole_round:
            self._session.succeeded()
        return verified is block

    def _start(self, order: DraftOrder | None) -> Proposal | None:
        if order is None or self._why_not():
            return None
        assert self._session is not None
        return self._session.start(order)

    async def _rest_of(self, ahead: Proposal) -> Block:
        drafted = await self._whole(ahead)
        block = self._ledger.take_ahead(ahead.order, drafted)
        return block if block.tokens else self._fall_back(ahead.cause)

    async def _whole(self, proposal: Proposal) -> Drafted:
        drafted = await proposal.whole()
        proposal.close()
        if drafted.done:
            self._whole_round = proposal.order.round
        return drafted

    def _fall_back(self, cause: str) -> Block:
        self._ledger.fell_back(cause or "empty")
        return Block()

    def _why_not(self) -> str:
        return "no_draft" if self._session is None else self._session.why_not()
