"""The workers of one pool as sessions see them: which one to call, and waiting for one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tandem.core.breaker import Breaker
from tandem.core.placement import Candidate, place
from tandem.core.types import Description
from tandem.rpc.exchange import Exchange


@dataclass(eq=False, slots=True)
class Replica:
    """One worker."""

    exchange: Exchange
    breaker: Breaker
    description: Description | None = None  # as it joined; None: it never has

    @property
    def fingerprint(self) -> str:
        return self.description.fingerprint if self.description else ""

    @property
    def is_open(self) -> bool:
        """Whether it takes new sessions."""
        return self.candidate().is_open

    def candidate(self, is_avoided: bool = False) -> Candidate:
        exchange = self.exchange
        return Candidate(exchange.num_sessions, exchange.connected, exchange.draining, is_avoided)

    def allows(self) -> bool:
        """Whether its breaker lets a call through."""
        return self.breaker.allows(_now())

    def trying(self) -> None:
        """A call begins."""
        self.breaker.trying(_now())

    def failed(self) -> None:
        """A call failed by the worker's fault."""
        self.breaker.failed(_now())

    def succeeded(self) -> None:
        """A call had a good answer."""
        self.breaker.succeeded()


class Replicas:
    """A pool. Workers come and go while sessions are on them."""

    def __init__(self, replicas: Iterable[Replica] = ()) -> None:
        self.all: list[Replica] = []
        self.on_answer: Callable[[float], None] = lambda seconds: None  # told how long each answered call took
        self._held: Counter[str] = Counter()  # fingerprint -> requests that need a worker with it
        self._changed = asyncio.Event()
        for replica in replicas:
            self.add(replica)

    def add(self, replica: Replica) -> None:
        replica.exchange.listeners.append(self._wake)
        replica.exchange.on_answer = lambda seconds: self.on_answer(seconds)
        self.all.append(replica)

    def remove(self, replica: Replica) -> None:
        self.all.remove(replica)

    @property
    def open(self) -> list[Replica]:
        """Those that take new sessions."""
        return [replica for replica in self.all if replica.is_open]

    @property
    def fingerprints(self) -> set[str]:
        """What a worker that joins must agree with: those that are there, and what running requests began with."""
        return {replica.fingerprint for replica in self.all if replica.exchange.connected} | set(self._held)

    def place(
        self, tie: int, current: Replica | None, refused: Replica | None = None, fingerprint: str | None = None
    ) -> Replica | None:
        """The worker for the next call of a session that is on `current`. None: there is none.

        Args:
            tie: any number, drawn per session
            refused: has had no room for it lately
            fingerprint: that the worker must have; None: any
        """
        fitting = [each for each in self.all if fingerprint is None or each.fingerprint == fingerprint]
        candidates = [each.candidate(each is refused or not each.allows()) for each in fitting]
        index = place(candidates, fitting.index(current) if current in fitting else None, tie)
        return None if index is None else fitting[index]

    async def until(self, condition: Callable[[], object]) -> None:
        """Returns once `condition()` holds; it is asked again whenever a worker joins, drains or is lost."""
        while not condition():
            await self._changed.wait()

    @contextlib.contextmanager
    def held(self, fingerprint: str) -> Iterator[None]:
        """While entered no worker with another fingerprint joins, be all others gone."""
        self._held[fingerprint] += 1
        try:
            yield
        finally:
            self._held[fingerprint] -= 1
            self._held += Counter()  # without zeros

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
