"""What happened in a run: what the client saw, what each worker accepted, and what remained afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults.lockstep import Lockstep
from tandem.core.sessions import Admitted
from tandem.core.types import Propose, Verify


@dataclass(frozen=True)
class Asked:
    """A request began."""

    request: str
    num_tokens: int  # that it must give
    output: tuple[int, ...] | None  # the very tokens; None where only the law is promised
    within_s: float  # longest time to its end
    at_s: float
    vocab_size: int = 256


@dataclass(frozen=True)
class Came:
    """The client got a chunk."""

    request: str
    offset: int
    tokens: tuple[int, ...]
    at_s: float


@dataclass(frozen=True)
class Ended:
    """The client got a status."""

    request: str
    status: str  # OK, or the error's name
    at_s: float


@dataclass(frozen=True)
class Accepted:
    """A worker began a call."""

    worker: str
    incarnation: int
    session_id: bytes
    number: int


@dataclass(frozen=True)
class Released:
    """A worker was told that a session has ended."""

    worker: str
    incarnation: int
    session_id: bytes


@dataclass(frozen=True)
class Remains:
    """What there was before the requests, and what there is after them."""

    what: str
    before: int
    after: int


@dataclass(frozen=True)
class Struck:
    """A fault began."""

    fault: str
    at_s: float


Event = Asked | Came | Ended | Accepted | Released | Remains | Struck


@dataclass
class History:
    """Events in the order in which they were noted; any thread may note one."""

    events: list[Event] = field(default_factory=list)
    num_came: int = 0  # tokens, of all requests
    lockstep: Lockstep = field(default_factory=Lockstep)
    _milestones: list[tuple[int, asyncio.Event]] = field(default_factory=list)

    def came(self, request: str, offset: int, tokens: Sequence[int]) -> None:
        self.events.append(Came(request, offset, tuple(tokens), time.monotonic()))
        self.num_came += len(tokens)
        for num_tokens, reached in self._milestones:
            if self.num_came >= num_tokens:
                reached.set()
        self.lockstep.came(self.num_came)

    async def until_came(self, num_tokens: int) -> None:
        """Returns when as many tokens have come as the number says, of all requests together."""
        if self.num_came < num_tokens:
            self._milestones.append((num_tokens, reached := asyncio.Event()))
            await reached.wait()

    def struck(self, fault: str) -> None:
        self.events.append(Struck(fault, time.monotonic()))

    def remains(self, what: str, before: int, after: int) -> None:
        self.events.append(Remains(what, before, after))

    @contextlib.contextmanager
    def asking(self, request: str, num_tokens: int, output: Sequence[int] | None, within_s: float) -> Iterator[None]:
        """Around the whole of one request: notes how it began and how it ended."""
        expected = None if output is None else tuple(output)
        self.events.append(Asked(request, num_tokens, expected, within_s, time.monotonic()))
        status = "OK"
        try:
            yield
        except Exception as error:
            status = f"{type(error).__name__}: {error}"
        finally:
            self.events.append(Ended(request, status, time.monotonic()))

    def watch(self, table: Any, worker: str, incarnation: int) -> None:
        """Notes what a worker's session table admits and releases from now on."""
        admit, release = table.admit, table.release

        def noted_admit(item: Verify | Propose, extra: int, stream: Hashable, now: float) -> Any:
            answer = admit(item, extra, stream, now)
            if isinstance(answer, Admitted):
                self.events.append(Accepted(worker, incarnation, item.call.session_id, item.call.number))
            return answer

        def noted_release(session_id: bytes, now: float) -> Any:
            self.events.append(Released(worker, incarnation, session_id))
            return release(session_id, now)

        table.admit, table.release = noted_admit, noted_release
