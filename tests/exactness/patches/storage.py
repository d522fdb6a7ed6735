"""Caches that keep what they should have dropped. The scripted models read their context back from the cache."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from pytest import MonkeyPatch

from draft_worker.drafter import CausalDrafter, CausalJob
from tandem.core import sessions
from tandem.core.prefix import Missing, TokenList
from tandem.core.sessions import Admitted, Session, SessionTable
from tandem.core.types import Prefix, Propose, Verify


def stale_target_row(patch: MonkeyPatch) -> None:
    """A cache that is long enough is taken to be right: the correction is not fed in the refused token's place."""
    real = SessionTable.admit

    def admit(self: SessionTable, item: Verify | Propose, extra: int, stream: Hashable, now: float) -> object:
        old = self.sessions.get(item.call.session_id)
        cached_len = old.cached_len if old is not None else 0
        answer = real(self, item, extra, stream, now)
        if not isinstance(answer, Admitted) or not isinstance(item, Verify) or not item.block.tokens:
            return answer
        if min(cached_len, answer.keep + 1) < item.prefix.length:
            return answer
        answer.session.cached_len = item.prefix.length
        return replace(answer, keep=item.prefix.length)

    patch.setattr(SessionTable, "admit", admit)


def stale_draft_row(patch: MonkeyPatch) -> None:
    """The draft's last stated token keeps the cache entry of the token that lay there before. Its q is still what it
    draws from, so the law holds.
    """
    real_reconcile, real_open = sessions.reconcile, CausalDrafter.open_job
    before = list[int | None]()

    def reconcile(tokens: TokenList, cached_len: int, prefix: Prefix) -> int | Missing:
        last = prefix.length - 1
        before[:] = [tokens.ids[last] if last < min(cached_len, len(tokens)) else None]
        return real_reconcile(tokens, cached_len, prefix)

    def open_job(self: CausalDrafter, session: Session, item: Propose, keep: int) -> object:
        job = real_open(self, session, item, keep)
        if before[0] is not None and isinstance(job, CausalJob):
            job.pending[-1] = before[0]
        return job

    patch.setattr(sessions, "reconcile", reconcile)
    patch.setattr(CausalDrafter, "open_job", open_job)
