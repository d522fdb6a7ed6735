"""The sessions of a worker: for each generation its token list, how much of it is cached, and its last call.

A session is a cache, never the truth: any of them may be dropped, the caller then states its prefix from the start.
Time is an argument, in seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from tandem.core.blocks import BlockPool
from tandem.core.prefix import Missing, TokenList, reconcile
from tandem.core.types import Propose, Refusal, RefusalReason, Reply, Verify

_MAX_TOMBSTONES = 100_000


class InvalidCall(ValueError):
    """A call that breaks the contract; its text says how."""


def check_call(item: Verify | Propose) -> None:
    """Raises InvalidCall unless the call's numbers fit one another."""
    prefix = item.prefix
    if len(item.call.session_id) != 16:
        raise InvalidCall("session_id: not 16 bytes")
    if prefix.start + len(prefix.tokens) != prefix.length:
        raise InvalidCall("prefix: start and tokens do not add up to length")
    if not 1 <= prefix.num_prompt_tokens <= prefix.num_committed <= prefix.length:
        raise InvalidCall("prefix: num_prompt_tokens, num_committed and length are out of order")


@dataclass(slots=True, eq=False)
class Session:
    session_id: bytes
    stream: Hashable  # that called last; its answers go there
    last_used: float
    tokens: TokenList = field(default_factory=TokenList)
    cached_len: int = 0  # positions whose KV is valid; rises only after a step has finished
    blocks: list[int] = field(default_factory=list)
    last_call: int = 0
    replies: list[Reply] = field(default_factory=list)  # to the last call, for a repetition
    running: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """A new call may start; the caller feeds tokens from `keep` on."""

    session: Session
    keep: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """The last call again: answer what was answered, and go on if it still runs."""

    session: Session


class SessionTable:
    """Admits calls by their number and prefix, and reserves memory for them."""

    def __init__(self, pool: BlockPool, lease_s: float = 60.0, tombstone_s: float = 3600.0) -> None:
        self.pool = pool
        self.sessions: dict[bytes, Session] = {}
        self._lease_s = lease_s
        self._tombstone_s = tombstone_s
        self._tombstones: OrderedDict[bytes, float] = OrderedDict()  # released id -> until when it is refused

    def admit(self, item: Verify | Propose, extra: int, stream: Hashable, now: float) -> Admitted | Repeated | Refusal:
        """Whether `item`, which may add `extra` tokens to its prefix, starts, is a repetition, or is refused.

        A refused call leaves the session as it was, except that its number counts as seen.
        """
        call = item.call
        if self._is_released(call.session_id, now):
            return Refusal(RefusalReason.RELEASED, "the session has been released")
        session = self.sessions.get(call.session_id)
        if session is not None and call.number <= session.last_call:
            return self._seen_before(session, call.number, stream, now)
        session = session or Session(call.session_id, stream, now)
        session.last_call, session.stream, session.last_used = call.number, stream, now
        session.replies = []
        if not self._reserve(session, item.prefix.length + extra, now):
            return Refusal(RefusalReason.FULL, "no memory for the session")
        self.sessions[call.session_id] = session
        keep = reconcile(session.tokens, session.cached_len, item.prefix)
        if isinstance(keep, Missing):
            return Refusal(RefusalReason.MISSING, "tokens are missing or differ", keep.have)
        session.cached_len = keep
        return Admitted(session, keep)

    def release(self, session_id: bytes, now: float) -> Session | None:
        """Ends a session for good: its id is refused from now on."""
        self._tombstones[session_id] = now + self._tombstone_s
        self._tombstones.move_to_end(session_id)
        if len(self._tombstones) > _MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)
        return self.drop(session_id)

    def drop(self, session_id: bytes) -> Session | None:
        """Forgets a session and frees its memory; the id may come back."""
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self.pool.give(session.blocks)
            session.blocks = []
        return session

    def close_stream(self, stream: Hashable) -> list[Session]:
        """Makes the sessions of an ended stream evictable at once; returns them."""
        orphans = [session for session in self.sessions.values() if session.stream == stream]
        for session in orphans:
            session.stream = None
        return orphans

    def expire(self, now: float) -> None:
        """Drops idle sessions whose lease has run out."""
        for session in self._evictable(now):
            if session.stream is not None or now - session.last_used > self._lease_s:
                self.drop(session.session_id)

    def check(self) -> None:
        """Raises ValueError unless the blocks of all sessions are exactly those in use."""
        self.pool.check()
        blocks = [block for session in self.sessions.values() for block in session.blocks]
        if len(blocks) != len(set(blocks)) or len(blocks) != self.pool.num_used:
            raise ValueError(f"{self.pool.num_used} blocks in use, sessions hold {len(blocks)}")

    def _is_released(self, session_id: bytes, now: float) -> bool:
        until = self._tombstones.get(session_id)
        return until is not None and now < until

    def _seen_before(self, session: Session, number: int, stream: Hashable, now: float) -> Repeated | Refusal:
        if number < session.last_call:
            return Refusal(RefusalReason.STALE, f"call {session.last_call} was seen")
        session.stream, session.last_used = stream, now
        return Repeated(session)

    def _reserve(self, session: Session, num_tokens: int, now: float) -> bool:
        wanted = self.pool.blocks_for(num_tokens) - len(session.blocks)
        if wanted <= 0:
            return True
        for idle in self._evictable(now):
            if self.pool.num_free >= wanted:
                break
            if idle is not session:
                self.drop(idle.session_id)
        blocks = self.pool.take(wanted, session.blocks[-1] if session.blocks else None)
        session.blocks.extend(blocks or [])
        return blocks is not None

    def _evictable(self, now: float) -> list[Session]:
        """Idle sessions that may go, best first: those of ended streams, then by age beyond the lease."""
        idle = [
            session
            for session in self.sessions.values()
            if not session.running and (session.stream is None or now - session.last_used > self._lease_s)
        ]
        return sorted(idle, key=lambda session: (session.stream is not None, session.last_used))
