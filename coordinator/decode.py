"""The hot path: one request, round by round. Decisions are the ledger's; here they are waited for.

pipelined   verify(prefix, block)  ||  propose(prefix + block, k + 1)    the ahead block; its first token is a guess
in turn     propose(prefix, k), then verify(prefix, block)
looked up   verify(prefix, block), the block taken from the text itself
plain       verify(prefix, empty block)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from coordinator.drafting import Drafting
from coordinator.timing import Stopwatch
from coordinator.workers import TargetSession
from tandem.core.ledger import Commit, Ledger
from tandem.core.pacing import Paces
from tandem.core.types import Block


async def decode(
    ledger: Ledger, target: TargetSession, drafting: Drafting, stopwatch: Stopwatch, paces: Paces
) -> AsyncGenerator[Commit]:
    """Yields what each verdict makes final, until the output ends.

    Pipelined, the prompt is verified with an empty block beside the first proposal, so that both prefills overlap.
    """
    pace = paces.choose()
    block = Block() if pace.ahead else await drafting.new_block(pace)
    while True:
        pace = paces.choose()  # of the block after this one
        ahead = drafting.start_ahead(pace, block)
        with stopwatch.verifying():
            verified, verdict = await target.verify(ledger.verify_order(block, ahead.order if ahead else None))
        commit = ledger.settle(verified, verdict)
        if commit.ending is not None:
            drafting.drop(ahead)
            yield commit
            return
        lap_s = stopwatch.lap()
        yield commit
        stopwatch.begin_lap()
        paces.observe(len(verified.tokens), verdict.num_accepted, lap_s)
        guess = commit.next_token if drafting.judged(block, verified) else None
        with stopwatch.waiting_for_draft():
            block = drafting.looked_up(paces.look_up(), ahead) or await drafting.next_block(pace, ahead, guess)
