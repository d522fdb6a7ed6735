"""The hot path: one request, round by round. Decisions are the ledger's; here they are waited for.

pipelined   verify(prefix, block)  ||  propose(prefix + block, k + 1)    the ahead block; its first token is a guess
in turn     propose(prefix, k), then verify(prefix, block)
plain       verify(prefix, empty block)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from coordinator.drafting import Drafting
from coordinator.timing import Stopwatch
from coordinator.workers import TargetSession
from tandem.core.ledger import Commit, Ledger
from tandem.core.types import Block


async def decode(
    ledger: Ledger, target: TargetSession, drafting: Drafting, stopwatch: Stopwatch, pipelined: bool
) -> AsyncGenerator[Commit]:
    """Yields what each verdict makes final, until the output ends.

    Pipelined, the prompt is verified with an empty block beside the first proposal, so that both prefills overlap.
    """
    block = Block() if pipelined else await drafting.new_block()
    while True:
        ahead = drafting.start(ledger.ahead_order(block)) if pipelined else None
        with stopwatch.verifying():
            verified, verdict = await target.verify(ledger.verify_order(block, ahead.order if ahead else None))
        commit = ledger.settle(verified, verdict)
        yield commit
        if commit.ending is not None:
            return
        drafting.judged(block, verified)
        with stopwatch.waiting_for_draft():
            block = await drafting.next_block(ahead, commit.next_token)
