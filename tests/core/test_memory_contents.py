"""What KV blocks hold, held against an oracle over random histories of a session table. Families D43, D46-D48, D50-D52.

The oracle writes, into a model of every slot, for which salt and for which exact text its position was computed. So a
block that is shared wrongly, written while shared, or kept beyond a roll-back shows at the next look.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from harness.worker_calls import call, session_id

from tandem.core.blocks import BlockPool
from tandem.core.prefix import TokenList, state_prefix
from tandem.core.sessions import Admitted, Repeated, Session, SessionTable
from tandem.core.types import Block, Propose, Refusal, RefusalReason, Verify

NUM_STEPS = 5_000
LEASE_S = 60.0
MAX_LENGTH = 38
SALTS = ("", "", "one", "two")
SPEECHES = [[7] * 22, [7] * 9 + [3] * 12, [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3]]  # that many texts begin with

Slot = tuple[str, int]  # salt, digest of the text up to and including the position


class Walk:
    """A table driven as an engine drives it, with an oracle of what every KV slot holds."""

    def __init__(self, seed: int, num_blocks: int, diverging: bool) -> None:
        self.rng = random.Random(seed)
        self.size = self.rng.choice([2, 4])
        self.pool = BlockPool(num_blocks * 4 // self.size, self.size)
        self.table = SessionTable(self.pool, LEASE_S, tombstone_s=500.0)
        self.now = 0.0
        self.diverging = diverging  # callers may take back what they called committed
        self.slots: list[Slot | None] = [None] * (self.pool.num_blocks * self.size)
        self.committed: set[Slot] = set()  # all that any caller ever called committed
        self.texts: dict[int, list[int]] = {}
        self.salts: dict[int, str] = {}
        self.numbers: Counter[int] = Counter()
        self.next_session = 0
        self.seen: Counter[str] = Counter()

    def step(self) -> None:
        often = [self.admit] * 8 + [self.feed] * 6 + [self.finish] * 4
        self.rng.choice([*often, self.release, self.release, self.drop, self.close_stream, self.expire])()
        self.table.check()
        self.check_contents()

    def check_contents(self) -> None:
        """What each session takes for cached is there, and what is named was committed under that salt."""
        for session in self.table.sessions.values():
            held = [self.slots[self.slot(session, position)] for position in range(session.cached_len)]
            assert held == [(session.salt, session.tokens.digest(n + 1)) for n in range(session.cached_len)]
        for block in self.pool._names:
            assert self.slots[(block + 1) * self.size - 1] in self.committed

    def slot(self, session: Session, position: int) -> int:
        return session.blocks[position // self.size] * self.size + position % self.size

    def admit(self) -> None:
        index = self.rng.choice([*self.texts, self.next_session])
        if index not in self.texts:
            self.begin_text(index)
        self.grow(index)
        item, extra = self.call(index)
        before = {key: list(session.blocks) for key, session in self.table.sessions.items()}
        existing = self.table.sessions.get(item.call.session_id)
        if existing is not None:
            existing.running = False  # the engine ends the running call first
        oldest = min(self.table.sessions.values(), key=lambda session: session.order, default=None)
        answer = self.table.admit(item, extra + 1, self.rng.randrange(3), self.now)
        if isinstance(answer, Admitted):
            self.admitted(answer, item, oldest, is_new=existing is None)
        else:
            assert isinstance(answer, Refusal)
            self.refused(answer, item, before, existing is oldest)

    def begin_text(self, index: int) -> None:
        self.next_session += 1
        speech = self.rng.choice(SPEECHES)
        self.texts[index] = speech[: self.rng.randrange(1, len(speech))] + self.rng.choices(range(9), k=1)
        self.salts[index] = self.rng.choice(SALTS)

    def grow(self, index: int) -> None:
        text = self.texts[index]
        if self.diverging and self.rng.random() < 0.1:
            del text[self.rng.randrange(1, len(text) + 1) :]
        elif len(text) < MAX_LENGTH - 6 and self.rng.random() < 0.8:
            text += self.rng.choices(range(9), k=self.rng.randrange(1, 4))

    def call(self, index: int) -> tuple[Verify | Propose, int]:
        text, key = self.texts[index], session_id(index)
        self.numbers[index] += 1
        is_new = key not in self.table.sessions
        made = call(index, self.numbers[index], max_length=MAX_LENGTH, salt=self.salts[index])
        made = replace(made, reserve_whole=is_new and self.rng.random() < 0.15)
        tokens = TokenList(text)
        start = self.rng.choice([0, 0, len(text) - 1, len(text)]) if not self.diverging else 0
        drafted = tuple(self.rng.choices(range(9), k=self.rng.randrange(4)))
        self.committed |= {(made.salt, tokens.digest(n)) for n in range(1, len(text) + 1)}
        if index % 2:
            return Propose(made, state_prefix(tokens, drafted, 1, start), 2), 2
        return Verify(made, state_prefix(tokens, (), 1, start), Block(drafted)), len(drafted)

    def admitted(self, answer: Admitted, item: Verify | Propose, oldest: Session | None, is_new: bool) -> None:
        session = answer.session
        assert answer.keep == session.cached_len <= item.prefix.length - 1
        assert not is_new or answer.keep == session.num_reused
        assert not (is_new and answer.preempted), "a new session takes nobody's memory"
        for victim in answer.preempted:
            assert victim.order > session.order and victim is not oldest and not victim.is_whole
            assert victim.session_id not in self.table.sessions and not victim.blocks
        if session.is_whole:
            assert len(session.blocks) >= self.pool.blocks_for(MAX_LENGTH + 1)
        block = item.block.tokens if isinstance(item, Verify) else (1, 2)
        session.tokens.extend(block)
        session.running = True
        self.seen["preempted"] += len(answer.preempted)
        self.seen["reused"] += is_new and answer.keep > 0

    def refused(self, refusal: Refusal, item: Verify | Propose, before: dict[bytes, list[int]], oldest: bool) -> None:
        self.seen[refusal.reason.name] += 1
        key = item.call.session_id
        if refusal.reason is RefusalReason.FULL:
            assert key not in before and key not in self.table.sessions
        elif refusal.reason is RefusalReason.PREEMPTED:
            assert key in before and key not in self.table.sessions
            assert not oldest or self.diverging, "the oldest is never preempted"
        else:
            assert refusal.reason in {RefusalReason.MISSING, RefusalReason.RELEASED}
        for other, session in self.table.sessions.items():
            assert other == key or session.blocks == before[other], "a refusal takes nobody's blocks"

    def feed(self) -> None:
        """A step's writes; the cached length rises only after them."""
        running = [session for session in self.table.sessions.values() if session.running]
        if not running:
            return
        session = self.rng.choice(running)
        end = min(len(session.tokens), session.cached_len + self.rng.randrange(1, 12))
        for position in range(session.cached_len, end):
            block = session.blocks[position // self.size]
            assert block not in self.pool._names, "a block with a name is never written"
            assert self.pool.num_users(block) == 1, "a shared block is never written"
            self.slots[self.slot(session, position)] = (session.salt, session.tokens.digest(position + 1))
        session.cached_len = end

    def finish(self) -> None:
        running = [session for session in self.table.sessions.values() if session.running]
        if running:
            session = self.rng.choice(running)
            session.running = False
            self.table.publish(session)

    def release(self) -> None:
        if self.texts:
            index = self.rng.choice(list(self.texts))
            del self.texts[index]
            self.table.release(session_id(index), self.now)

    def drop(self) -> None:
        idle = [key for key, session in self.table.sessions.items() if not session.running]
        if idle and self.rng.random() < 0.3:
            self.table.drop(self.rng.choice(idle))

    def close_stream(self) -> None:
        if self.rng.random() < 0.2:
            for session in self.table.close_stream(self.rng.randrange(3)):
                session.running = False

    def expire(self) -> None:
        self.now += self.rng.choice([0.1, 1.0, 61.0])
        self.table.expire(self.now)


@pytest.mark.parametrize("diverging", [False, True], ids=["growing", "diverging"])
@pytest.mark.parametrize("num_blocks", [11, 16, 40])
def test_what_a_session_takes_for_cached_is_what_its_blocks_hold(num_blocks: int, diverging: bool) -> None:
    walk = Walk(num_blocks, num_blocks, diverging)
    for _ in range(NUM_STEPS):
        walk.step()
    assert walk.seen["reused"] > 20
    if num_blocks < 40:
        assert walk.seen["preempted"] and walk.seen["FULL"] and (diverging or walk.seen["MISSING"])
    for index in range(walk.next_session):
        walk.table.release(session_id(index), walk.now)
    walk.table.check()
    assert walk.pool.num_available == walk.pool.num_blocks


def admit(sessions: SessionTable, index: int, text: list[int], *, now: float, stream: str = "s") -> object:
    prefix = state_prefix(TokenList(text), (), 1, 0)
    return sessions.admit(Verify(call(index, 1), prefix, Block()), 1, stream, now)


def left(sessions: SessionTable) -> list[int]:
    return [int.from_bytes(key, "big") for key in sessions.sessions]


def test_memory_is_taken_from_ended_streams_first_then_from_the_longest_idle_beyond_the_lease() -> None:
    """And from nobody else."""
    sessions = SessionTable(BlockPool(10, 4), LEASE_S)
    for index, (now, stream) in enumerate([(0.0, "s"), (10.0, "s"), (2.0, "s"), (100.0, "gone"), (100.0, "s")]):
        assert isinstance(admit(sessions, index, [index] * 7, now=now, stream=stream), Admitted)
    sessions.close_stream("gone")
    expected = [[0, 1, 2, 4], [1, 2, 4], [1, 4], [4]]
    for number, rest in enumerate(expected, start=10):
        assert isinstance(admit(sessions, number, [number % 9] * 7, now=101.0), Admitted)
        assert [index for index in left(sessions) if index < 10] == rest
    refused = admit(sessions, 20, [0] * 7, now=101.0)
    assert isinstance(refused, Refusal) and refused.reason is RefusalReason.FULL


def test_a_block_that_is_shared_and_rolled_back_over_is_given_back_not_written() -> None:
    sessions, text = SessionTable(BlockPool(16, 4), LEASE_S), list(range(1, 13))
    first = admit(sessions, 1, text, now=0.0)
    assert isinstance(first, Admitted)
    first.session.cached_len = 12
    sessions.publish(first.session)
    second = admit(sessions, 2, [*text, 13], now=0.0)
    assert isinstance(second, Admitted) and second.keep == 12
    assert second.session.blocks[:3] == first.session.blocks[:3]
    other = [*text[:6], 8, 8, 8, 8]  # leaves the text within its second block
    prefix = state_prefix(TokenList(other), (), 1, 0)
    again = sessions.admit(Verify(call(2, 2), prefix, Block()), 1, "s", 0.0)
    assert isinstance(again, Admitted) and again.keep == 4, "a whole block is computed anew"
    assert again.session.blocks[0] == first.session.blocks[0]
    assert not set(again.session.blocks[1:]) & set(first.session.blocks)
    sessions.check()


def test_what_can_never_fit_is_refused_as_invalid_and_takes_nothing() -> None:
    sessions = SessionTable(BlockPool(4, 4), LEASE_S)
    refused = admit(sessions, 1, [1] * 16, now=0.0)
    assert isinstance(refused, Refusal) and refused.reason is RefusalReason.INVALID
    assert not isinstance(admit(sessions, 2, [1] * 15, now=0.0), Refusal | Repeated)
    sessions.check()
