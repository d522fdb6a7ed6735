"""The workers a coordinator has: a pool of targets and a pool of drafts, in any proportion."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from coordinator.discovery import Resolve, system_resolver
from coordinator.membership import Membership
from coordinator.patience import Patience
from coordinator.replicas import Replicas
from coordinator.workers import DraftSession, TargetSession
from tandem.config import Config
from tandem.core.ledger import Ledger
from tandem.core.types import Call, Description
from tandem.errors import Unavailable
from tandem.rpc.codec.public import WorkerState
from tandem.rpc.link import Gate, Link


class Pool:
    """Opens the sessions of a request on the workers that there are."""

    def __init__(self, config: Config, gate: Gate, resolve: Resolve = system_resolver) -> None:
        settings = config.coordinator
        self._settings = settings
        self._members = {
            "target": Membership("target", settings.targets, settings.target_retry_s, config, gate, resolve),
            "draft": Membership("draft", settings.drafts, settings.draft_retry_s, config, gate, resolve),
        }
        self._patience = Patience(settings.target_wait_s, settings.memory_wait_s, settings.answer_wait_s)

    @property
    def targets(self) -> Replicas:
        return self._members["target"].replicas

    @property
    def drafts(self) -> Replicas:
        return self._members["draft"].replicas

    @property
    def links(self) -> list[Link]:
        """To all workers that are known."""
        return [link for membership in self._members.values() for link in membership.links]

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keeps the links up while entered."""
        async with self._members["target"].kept(), self._members["draft"].kept():
            yield

    def target(self) -> Description:
        """The target that is served, with the least memory that any of its workers has.

        Raises Unavailable if no worker takes new sessions.
        """
        descriptions = [replica.description for replica in self.targets.open if replica.description]
        if not descriptions:
            raise Unavailable(f"no target worker is ready: {self._why_no_target()}")
        return replace(descriptions[0], kv_budget_tokens=min(each.kv_budget_tokens for each in descriptions))

    @property
    def has_draft(self) -> bool:
        """Whether there are to be draft workers, ready or not."""
        return bool(self._settings.drafts)

    @property
    def draft_context(self) -> int | None:
        """The drafts' context length, if known."""
        return min((each.description.context_length for each in self.drafts.all if each.description), default=None)

    @contextlib.contextmanager
    def sessions(
        self, call: Call, ledger: Ledger, fingerprint: str
    ) -> Iterator[tuple[TargetSession, DraftSession | None]]:
        """One session on a target with `fingerprint` and one on a draft, released on leaving."""
        target = TargetSession(self.targets, call, ledger, self._patience, fingerprint)
        draft = DraftSession(self.drafts, call, ledger, self._settings.draft_wait_s) if self.has_draft else None
        with self.targets.held(fingerprint):
            try:
                yield target, draft
            finally:
                target.release()
                if draft is not None:
                    draft.release()

    async def states(self) -> list[WorkerState]:
        """Every worker, asked now."""
        states = await asyncio.gather(*(membership.states() for membership in self._members.values()))
        return [state for role in states for state in role]

    def _why_no_target(self) -> str:
        reasons = self._members["target"].reasons()
        return "; ".join(reasons) or "none is known"
