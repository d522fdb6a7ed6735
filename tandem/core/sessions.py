"""The sessions of a worker: for each generation its token list, how much of it is cached, and its last call.

A session is a cache, never the truth: any of them may be dropped, the caller then states its prefix from the start.
Time is an argument, in seconds.

    blocks   [ full, committed: named, maybe shared | own, written by steps ]
               len(content_ids) of them
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from tandem.core.blocks import ROOT, BlockName, BlockPool
from tandem.core.prefix import Missing, TokenList, reconcile
from tandem.core.types import Call, Prefix, Propose, Refusal, RefusalReason, Reply, Verify

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
    order: int  # of creation
    stream: Hashable  # that called last; its answers go there
    last_used: float
    salt: str
    tokens: TokenList = field(default_factory=TokenList)
    num_committed: int = 0
    num_reused: int = 0  # positions found in the cache when the session began
    cached_len: int = 0  # positions whose KV is valid; rises only after a step has finished
    blocks: list[int] = field(default_factory=list)
    content_ids: list[int] = field(default_factory=list)  # of the leading blocks that are named
    last_call: int = 0
    replies: list[Reply] = field(default_factory=list)  # to the last call, for a repetition
    running: bool = False
    max_length: int = 0
    is_whole: bool = False  # all the memory it can ever need is reserved: it is not preempted


@dataclass(frozen=True, slots=True)
class Admitted:
    """A new call may start; the caller feeds tokens from `keep` on. `preempted` sessions are gone."""

    session: Session
    keep: int
    preempted: tuple[Session, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeated:
    """The last call again: answer what was answered, and go on if it still runs."""

    session: Session


class SessionTable:
    """Admits calls by their number and prefix, and reserves memory for them: all of it, or the call does not start.

    Memory goes first to those who came first. A new session never takes another's; a session that grows takes, where
    nothing else is left, that of the newest, which is computed again later. The oldest always goes on.
    """

    def __init__(self, pool: BlockPool, lease_s: float = 60.0, tombstone_s: float = 3600.0) -> None:
        self.pool = pool
        self.sessions: dict[bytes, Session] = {}
        self._lease_s = lease_s
        self._tombstone_s = tombstone_s
        self._tombstones: OrderedDict[bytes, float] = OrderedDict()  # released id -> until when it is refused
        self._num_created = 0

    def admit(self, item: Verify | Propose, extra: int, stream: Hashable, now: float) -> Admitted | Repeated | Refusal:
        """Whether `item`, which may add `extra` tokens to its prefix, starts, is a repetition, or is refused.

        A refused call leaves the session as it was, except that its number counts as seen; or takes it away where the
        memory it needs belongs to older ones.
        """
        call = item.call
        if self._is_released(call.session_id, now):
            return Refusal(RefusalReason.RELEASED, "the session has been released")
        session = self.sessions.get(call.session_id)
        if session is not None and call.number <= session.last_call:
            return self._seen_before(session, call.number, stream, now)
        session = session or self._create(call, stream, now)
        session.last_call, session.stream, session.last_used = call.number, stream, now
        session.replies = []
        return self._stand_on(session, item, extra, now)

    def publish(self, session: Session) -> None:
        """Names the blocks that are full of committed, cached tokens, so that others can share them."""
        size = self.pool.block_size
        for index in range(len(session.content_ids), min(session.cached_len, session.num_committed) // size):
            name = self._block_name(session, index)
            session.content_ids.append(self.pool.name(session.blocks[index], name))

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
            session.blocks, session.content_ids, session.cached_len = [], [], 0
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
            if now - session.last_used > self._lease_s:
                self.drop(session.session_id)

    def check(self) -> None:
        """Raises ValueError unless every block in use belongs to as many sessions as it has users."""
        self.pool.check()
        users = Counter(block for session in self.sessions.values() for block in session.blocks)
        for block in range(self.pool.num_blocks):
            if users[block] != self.pool.num_users(block):
                raise ValueError(f"block {block}: {self.pool.num_users(block)} users, {users[block]} sessions")

    def _create(self, call: Call, stream: Hashable, now: float) -> Session:
        self._num_created += 1
        return Session(call.session_id, self._num_created, stream, now, call.salt)

    def _is_released(self, session_id: bytes, now: float) -> bool:
        until = self._tombstones.get(session_id)
        return until is not None and now < until

    def _seen_before(self, session: Session, number: int, stream: Hashable, now: float) -> Repeated | Refusal:
        if number < session.last_call:
            return Refusal(RefusalReason.STALE, f"call {session.last_call} was seen")
        session.stream, session.last_used = stream, now
        return Repeated(session)

    def _stand_on(self, session: Session, item: Verify | Propose, extra: int, now: float) -> Admitted | Refusal:
        keep = reconcile(session.tokens, session.cached_len, item.prefix)
        if isinstance(keep, Missing):
            return Refusal(RefusalReason.MISSING, "tokens are missing or differ", keep.have)
        session.num_committed = item.prefix.num_committed
        if session.session_id not in self.sessions:
            self._reuse(session, item.prefix)
            keep = session.num_reused
        session.cached_len = self._unshare(session, keep)
        session.is_whole = session.is_whole or item.call.reserve_whole
        session.max_length = item.call.max_length
        num_tokens = max(item.prefix.length + extra, session.max_length + 1 if session.is_whole else 0)
        preempted = self._reserve(session, num_tokens, now)
        return preempted if isinstance(preempted, Refusal) else Admitted(session, session.cached_len, preempted)

    def _reuse(self, session: Session, prefix: Prefix) -> None:
        """Begins a session with the blocks of others that hold its committed tokens; the last token is fed anyway."""
        size = self.pool.block_size
        for index in range(min(prefix.num_committed, prefix.length - 1) // size):
            found = self.pool.share(self._block_name(session, index))
            if found is None:
                break
            session.blocks.append(found[0])
            session.content_ids.append(found[1])
        session.num_reused = len(session.blocks) * size

    def _unshare(self, session: Session, keep: int) -> int:
        """Named blocks are not written: those from `keep` on are given back. Returns the positions then kept."""
        num_named = keep // self.pool.block_size
        if num_named >= len(session.content_ids):
            return keep
        self.pool.give(session.blocks[num_named:])
        del session.blocks[num_named:], session.content_ids[num_named:]
        return num_named * self.pool.block_size

    def _block_name(self, session: Session, index: int) -> BlockName:
        size = self.pool.block_size
        parent = session.content_ids[index - 1] if index else ROOT
        return BlockName(session.salt, parent, tuple(session.tokens[index * size : (index + 1) * size]))

    def _reserve(self, session: Session, num_tokens: int, now: float) -> tuple[Session, ...] | Refusal:
        """Memory for `num_tokens`, and the sessions that had to go for it."""
        wanted = max(self.pool.blocks_for(num_tokens) - len(session.blocks), 0)
        is_new = session.session_id not in self.sessions
        self._evict_idle(session, wanted, now)
        victims = () if is_new else self._newer_to_preempt(session, wanted)
        spare = self._largest_need_of_others(session) if is_new and session.is_whole else 0
        self.sessions[session.session_id] = session
        for victim in victims:
            self.drop(victim.session_id)
        if wanted + spare > self.pool.num_available:
            self.drop(session.session_id)
            return self._refuse_memory(num_tokens, is_new)
        session.blocks += self.pool.take(wanted, session.blocks[-1] if session.blocks else None) or []
        return victims

    def _refuse_memory(self, num_tokens: int, is_new: bool) -> Refusal:
        if self.pool.blocks_for(num_tokens) > self.pool.num_blocks:
            return Refusal(RefusalReason.INVALID, f"{num_tokens} tokens can never fit")
        reason = RefusalReason.FULL if is_new else RefusalReason.PREEMPTED
        return Refusal(reason, f"no memory for {num_tokens} tokens")

    def _evict_idle(self, session: Session, wanted: int, now: float) -> None:
        if self.pool.num_available >= wanted:  # the usual case: no session is looked at
            return
        for idle in self._evictable(now):
            if self.pool.num_available >= wanted:
                return
            if idle is not session:
                self.drop(idle.session_id)

    def _newer_to_preempt(self, session: Session, wanted: int) -> tuple[Session, ...]:
        """Newer sessions, the newest first, whose memory suffices; none if even all of it would not."""
        if self.pool.num_available >= wanted:
            return ()
        newer = [other for other in self.sessions.values() if other.order > session.order and not other.is_whole]
        num_available, users, victims = self.pool.num_available, Counter[int](), list[Session]()
        for other in sorted(newer, key=lambda other: -other.order):
            if num_available >= wanted:
                break
            users.update(other.blocks)
            num_available += sum(users[block] == self.pool.num_users(block) for block in other.blocks)
            victims.append(other)
        return tuple(victims) if num_available >= wanted else ()

    def _largest_need_of_others(self, session: Session) -> int:
        """Blocks that must stay within reach, so that every session that is not whole can still finish."""
        others = [other for other in self.sessions.values() if other is not session and not other.is_whole]
        return max((self.pool.blocks_for(other.max_length + 1) - len(other.blocks) for other in others), default=0)

    def _evictable(self, now: float) -> list[Session]:
        """Idle sessions that may go, best first: those of ended streams, then by age beyond the lease."""
        idle = [
            session
            for session in self.sessions.values()
            if not session.running and (session.stream is None or now - session.last_used > self._lease_s)
        ]
        return sorted(idle, key=lambda session: (session.stream is not None, session.last_used))
