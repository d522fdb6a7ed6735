"""The workers a coordinator has: one target, at most one draft."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import grpc

from coordinator.breaker import Breaker
from coordinator.patience import Patience
from coordinator.workers import DraftSession, TargetSession
from tandem.config import Config
from tandem.core.ledger import Ledger
from tandem.core.types import Call, Description
from tandem.errors import Unavailable
from tandem.rpc.codec.public import WorkerState
from tandem.rpc.link import Gate, Link


class Pool:
    """Links to the workers; opens the sessions of a request on them."""

    def __init__(self, config: Config, gate: Gate) -> None:
        settings = config.coordinator
        self._settings = settings
        self.target_link = Link("target", settings.target, config.rpc, gate)
        self.draft_link = Link("draft", settings.draft, config.rpc, gate) if settings.draft else None
        self._breaker = Breaker(settings.draft_retry_s)
        self._patience = Patience(settings.target_wait_s, settings.memory_wait_s, settings.answer_wait_s)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keeps the links up while entered."""
        links = [link for link in (self.target_link, self.draft_link) if link is not None]
        tasks = [asyncio.create_task(link.run()) for link in links]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def target(self) -> Description:
        """The target that is served. Raises Unavailable if none has joined."""
        if self.target_link.description is None or not self.target_link.ready:
            raise Unavailable(f"no target worker is ready: {self.target_link.reason}")
        return self.target_link.description

    @property
    def has_draft(self) -> bool:
        """Whether there is a draft worker, ready or not."""
        return self.draft_link is not None

    @property
    def draft_context(self) -> int | None:
        """The draft's context length, if known."""
        description = self.draft_link.description if self.draft_link else None
        return description.context_length if description else None

    @contextlib.contextmanager
    def sessions(self, call: Call, ledger: Ledger) -> Iterator[tuple[TargetSession, DraftSession | None]]:
        """One session on each worker, released on leaving."""
        target = TargetSession(self.target_link.exchange, call, ledger, self._patience)
        draft = self._draft_session(call, ledger)
        try:
            yield target, draft
        finally:
            target.release()
            if draft is not None:
                draft.release()

    async def states(self) -> list[WorkerState]:
        """Every worker, asked now."""
        links = [link for link in (self.target_link, self.draft_link) if link is not None]
        return await asyncio.gather(*(_state(link) for link in links))

    def _draft_session(self, call: Call, ledger: Ledger) -> DraftSession | None:
        if self.draft_link is None:
            return None
        return DraftSession(self.draft_link.exchange, call, ledger, self._breaker, self._settings.draft_wait_s)


async def _state(link: Link) -> WorkerState:
    description, reason = link.description, link.reason
    if link.ready:
        try:
            description, reason = await link.describe(), ""
        except grpc.aio.AioRpcError as error:
            reason = f"does not answer: {error.code().name}"
    if description is None:
        return WorkerState(link.role, link.address, False, reason)
    return WorkerState(
        role=link.role,
        address=link.address,
        ready=link.ready and not reason,
        reason=reason,
        model=description.model,
        fingerprint=description.fingerprint,
        tensor_parallel_size=description.tensor_parallel_size,
        num_sessions=description.num_sessions,
        kv_used=description.kv_used_tokens / max(description.kv_budget_tokens, 1),
    )
