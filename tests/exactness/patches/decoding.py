"""Which row, which token, which block: the ledger and the loop."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from pytest import MonkeyPatch
from torch import Tensor

from coordinator.drafting import Drafting
from coordinator.workers import Proposal
from tandem.core import rules
from tandem.core.distributions import Rows
from tandem.core.ledger import Commit, Ledger
from tandem.core.load import Pace
from tandem.core.types import Block, Verdict, Verify

_SHARE = 0.02


def bonus_from_wrong_row(patch: MonkeyPatch) -> None:
    """The bonus is drawn from the row that judged the last draft token."""
    real = rules._judge_by_rejection

    def judge(item: Verify, p: Tensor, rows: Rows) -> tuple[int, int]:
        return real(item, torch.cat([p[:-1], p[-2:-1]]) if len(p) > 1 else p, rows)

    patch.setattr(rules, "_judge_by_rejection", judge)


def guess_for_bonus(patch: MonkeyPatch) -> None:
    """The ahead block is kept with its guess, whatever the bonus is."""
    real_settle, real_start = Ledger.settle, Drafting.start_ahead
    started = list[Proposal | None]()

    def start_ahead(self: Drafting, pace: Pace, block: Block) -> Proposal | None:
        started[:] = [real_start(self, pace, block)]
        return started[0]

    def settle(self: Ledger, block: Block, verdict: Verdict) -> Commit:
        ahead = started[0] if started else None
        accepted_all = verdict.num_accepted == len(block.tokens)
        if ahead is not None and ahead.order.speculated == block.tokens and accepted_all and ahead.num_arrived():
            verdict = replace(verdict, next_token=ahead.drafted.tokens[0])
        return real_settle(self, block, verdict)

    patch.setattr(Drafting, "start_ahead", start_ahead)
    patch.setattr(Ledger, "settle", settle)


def rejected_stay(patch: MonkeyPatch) -> None:
    """The whole block becomes final, and the correction behind it."""
    real = Ledger.settle

    def settle(self: Ledger, block: Block, verdict: Verdict) -> Commit:
        return real(self, block, replace(verdict, num_accepted=len(block.tokens)))

    patch.setattr(Ledger, "settle", settle)


def duplicates(patch: MonkeyPatch) -> None:
    """Now and then the last token of a commit is streamed twice."""
    _stream(patch, lambda commit: _longer(commit))


def losses(patch: MonkeyPatch) -> None:
    """Now and then the last token of a commit is not streamed."""
    _stream(patch, lambda commit: replace(commit, tokens=commit.tokens[:-1], origins=commit.origins[:-1]))


def ahead_unused(patch: MonkeyPatch) -> None:
    """No ahead block ever stands."""
    real = Drafting.next_block
    patch.setattr(Drafting, "next_block", lambda self, pace, ahead, next_token: real(self, pace, ahead, None))


def ahead_always_kept(patch: MonkeyPatch) -> None:
    """The ahead block is kept behind any bonus. Lawful: its tokens are what its q says, whatever q was made from, and
    no number that drew or tests them has been used before. But its q belongs to another text.
    """
    real = Drafting.next_block

    async def next_block(self: Drafting, pace: Pace, ahead: Proposal | None, next_token: int | None) -> Block:
        guess = await ahead.first() if ahead is not None and next_token is not None else None
        return await real(self, pace, ahead, next_token if guess is None else guess)

    patch.setattr(Drafting, "next_block", next_block)


def _longer(commit: Commit) -> Commit:
    tokens, origins = (*commit.tokens, commit.tokens[-1]), (*commit.origins, commit.origins[-1])
    return replace(commit, tokens=tokens, origins=origins)


def _stream(patch: MonkeyPatch, change: object) -> None:
    real, coin = Ledger.settle, random.Random(6)

    def settle(self: Ledger, block: Block, verdict: Verdict) -> Commit:
        commit = real(self, block, verdict)
        return change(commit) if coin.random() < _SHARE else commit  # type: ignore[operator]

    patch.setattr(Ledger, "settle", settle)
