"""Who belongs to a pool: the workers that its addresses name now, and those that still finish what they began."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass

import grpc

from coordinator.discovery import Resolve, follow
from coordinator.gate import misfit
from coordinator.replicas import Replica, Replicas
from tandem.addresses import is_literal
from tandem.config import Config
from tandem.core.breaker import Breaker
from tandem.core.types import Description
from tandem.rpc.codec.public import WorkerState
from tandem.rpc.link import Gate, Link

_log = logging.getLogger(__name__)
_MISSES_TO_FORGET = 5  # pauses with a resolver that fails, in which a worker that is not reached stays known


@dataclass(eq=False, slots=True)
class _Member:
    link: Link
    replica: Replica
    task: asyncio.Task[None]


class Membership:
    """Keeps a link to every worker of one role, and the pool's replicas in step with them.

    A name that does not resolve says nothing of its workers: they stay, and only those that are not reached either are
    forgotten after a while. A worker that no name stands for any more is drained once one that is named has joined.
    """

    def __init__(
        self, role: str, addresses: Sequence[str], retry_s: float, config: Config, gate: Gate, resolve: Resolve
    ) -> None:
        self.replicas = Replicas()
        self._role = role
        self._sources = addresses
        self._retry_s = retry_s
        self._config = config
        self._gate = gate
        self._resolve = resolve
        self._members: dict[str, _Member] = {}
        self._named: dict[str, Collection[str]] = {}  # source -> the workers it stands for
        self._problems: dict[str, str] = {}  # source -> why it does not resolve

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Up to date while entered; no link is left on leaving."""
        self._named = {source: {source} for source in self._sources if is_literal(source)}
        self._update()
        names = [source for source in self._sources if not is_literal(source)]
        following = [asyncio.create_task(self._follow(name)) for name in names]
        try:
            yield
        finally:
            tasks = [*following, *(member.task for member in self._members.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def why_not(self, link: Link, description: Description) -> str:
        """The gate of its links: the vocabulary, then whether it is of one kind with those that are there."""
        if reason := await self._gate.why_not(link, description):
            return reason
        replica = self._members[link.address].replica
        others = [each.description for each in self.replicas.all if each.exchange.connected and each.description]
        reason = misfit(description, self.replicas.fingerprints, others)
        if not reason:
            if replica.description and replica.description.incarnation != description.incarnation:
                replica.breaker.succeeded()  # another process
            replica.description = description
        return reason

    @property
    def links(self) -> list[Link]:
        return [member.link for member in self._members.values()]

    def reasons(self) -> list[str]:
        """Why workers are not used, and why names stand for none."""
        return [*(link.reason for link in self.links if link.reason), *self._problems.values()]

    async def states(self) -> list[WorkerState]:
        """Every worker, asked now, and every name that stands for none."""
        workers = await asyncio.gather(*(_state(member) for member in self._members.values()))
        names = [
            WorkerState(self._role, source, False, reason)
            for source, reason in self._problems.items()
            if not self._named.get(source)
        ]
        return [*workers, *names]

    async def _follow(self, name: str) -> None:
        misses: Counter[str] = Counter()  # worker -> pauses without it since it was reached
        now_s, pause_s, counted_s = asyncio.get_running_loop().time, self._config.coordinator.resolve_s, -math.inf

        def found(addresses: Collection[str]) -> None:
            if self._problems.pop(name, ""):
                _log.info("%s resolves again", name)
            misses.clear()
            self._named[name] = addresses
            self._update()

        def failed(reason: str) -> None:
            nonlocal counted_s
            if self._problems.get(name) != reason:
                _log.warning("%s", reason)
            self._problems[name] = reason
            known = self._named.get(name, ())
            is_another = now_s() - counted_s > 0.9 * pause_s  # answers that are sought in a hurry count as one
            counted_s = now_s() if is_another else counted_s
            for address in known:
                misses[address] = 0 if self._is_reached(address) else misses[address] + is_another
            self._named[name] = [address for address in known if misses[address] < _MISSES_TO_FORGET]
            self._update()

        await follow(name, self._resolve, pause_s, found, failed, self._nobody_left)

    async def _nobody_left(self) -> None:
        await self.replicas.until(lambda: not self.replicas.open)

    def _is_reached(self, address: str) -> bool:
        return address in self._members and self._members[address].link.ready

    def _update(self) -> None:
        wanted = dict.fromkeys(address for addresses in self._named.values() for address in addresses)
        for address in wanted:
            if address not in self._members:
                self._add(address)
        is_replaced = any(self._members[address].link.ready for address in wanted)
        for address, member in self._members.items():
            if not member.link.ready and address not in wanted:
                member.task.cancel()
            else:
                member.link.leave(is_replaced and address not in wanted)

    def _add(self, address: str) -> None:
        link = Link(self._role, address, self._config.rpc, self)
        replica = Replica(link.exchange, Breaker(self._retry_s))
        self.replicas.add(replica)
        task = asyncio.create_task(link.run())
        self._members[address] = _Member(link, replica, task)
        task.add_done_callback(lambda _: self._remove(address))

    def _remove(self, address: str) -> None:
        self.replicas.remove(self._members.pop(address).replica)


async def _state(member: _Member) -> WorkerState:
    link, description, reason = member.link, member.link.description, member.link.reason
    if member.replica.is_open:
        try:
            description, reason = await link.describe(), ""
        except grpc.aio.AioRpcError as error:
            reason = f"does not answer: {error.code().name}"
        if not reason and not member.replica.allows():
            reason = "paused: it has failed again and again"
    if description is None:
        return WorkerState(link.role, link.address, False, reason)
    return WorkerState(
        role=link.role,
        address=link.address,
        ready=member.replica.is_open and not reason,
        reason=reason,
        model=description.model,
        fingerprint=description.fingerprint,
        tensor_parallel_size=description.tensor_parallel_size,
        num_sessions=description.num_sessions,
        kv_used=description.kv_used_tokens / max(description.kv_budget_tokens, 1),
    )
