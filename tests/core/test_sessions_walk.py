"""KV accounting balances after every random step. Families D50, D51, D52, I91."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from harness.worker_calls import call, propose, session_id, verify

from tandem.core.blocks import ROOT, BlockName, BlockPool
from tandem.core.prefix import TokenList, state_prefix
from tandem.core.sessions import Admitted, Repeated, Session, SessionTable
from tandem.core.types import Block, Propose, Refusal, RefusalReason, Verify

NUM_STEPS = 4_000
LEASE_S = 60.0


class Walk:
    """A table driven the way an engine drives it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.table = SessionTable(BlockPool(self.rng.choice([12, 30, 80]), 4), LEASE_S, tombstone_s=500.0)
        self.now = 0.0
        self.numbers: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}
        self.next_session = 0
        self.reasons: set[RefusalReason] = set()

    def step(self) -> None:
        acts = [self.admit] * 8 + [self.finish] * 4 + [self.release, self.drop, self.close_stream, self.expire]
        self.rng.choice(acts)()
        self.table.check()

    def admit(self) -> None:
        index = self.rng.choice([*self.numbers, self.next_session])
        if index == self.next_session:
            self.next_session += 1
            self.texts[index] = [7] * self.rng.randrange(1, 12) + self.rng.choices(range(9), k=self.rng.randrange(4))
        self.numbers[index] = self.numbers.get(index, 0) + 1
        item = self.item(index)
        before = self.table.sessions.get(session_id(index))
        if before is not None:
            before.running = False  # the engine ends the running call first
        answer = self.table.admit(item, len(item.block.tokens) + 1, self.rng.randrange(3), self.now)
        self.judge(answer, item)

    def item(self, index: int) -> Verify:
        text, number = self.texts[index], self.numbers[index]
        if len(text) < 40 and self.rng.random() < 0.7:
            text += self.rng.choices(range(9), k=self.rng.randrange(1, 4))
        start = self.rng.choice([0, 0, len(text) - 1, len(text)])
        prefix = state_prefix(TokenList(text), (), 1, start)
        block = Block(tuple(self.rng.choices(range(9), k=self.rng.randrange(5))))
        whole = self.rng.random() < 0.1
        return Verify(replace(call(index, number, max_length=46), reserve_whole=whole), prefix, block)

    def judge(self, answer: Admitted | Repeated | Refusal, item: Verify) -> None:
        session = self.table.sessions.get(item.call.session_id)
        if isinstance(answer, Refusal):
            self.reasons.add(answer.reason)
            return
        assert isinstance(answer, Admitted) and session is answer.session
        assert answer.keep == session.cached_len <= item.prefix.length - 1
        assert len(session.blocks) * 4 >= item.prefix.length + len(item.block.tokens) + 1
        for victim in answer.preempted:
            assert victim.session_id not in self.table.sessions and victim.order > session.order
            assert not victim.blocks and not victim.is_whole
        session.tokens.extend(item.block.tokens)
        session.running = True

    def finish(self) -> None:
        running = [session for session in self.table.sessions.values() if session.running]
        if running:
            session: Session = self.rng.choice(running)
            session.cached_len = self.rng.randint(session.cached_len, len(session.tokens))
            session.running = False
            self.table.publish(session)

    def release(self) -> None:
        if self.numbers:
            index = self.rng.choice(list(self.numbers))
            del self.numbers[index], self.texts[index]
            self.table.release(session_id(index), self.now)

    def drop(self) -> None:
        idle = [key for key, session in self.table.sessions.items() if not session.running]
        if idle:
            self.table.drop(self.rng.choice(idle))

    def close_stream(self) -> None:
        if self.rng.random() < 0.2:
            for session in self.table.close_stream(self.rng.randrange(3)):
                session.running = False

    def expire(self) -> None:
        self.now += self.rng.choice([0.1, 1.0, 61.0])
        self.table.expire(self.now)


@pytest.mark.parametrize("seed", range(6))
def test_memory_balances_after_every_step(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(NUM_STEPS):
        walk.step()
    assert RefusalReason.MISSING in walk.reasons
    for key in list(walk.table.sessions):
        walk.table.release(key, walk.now)
    walk.table.check()
    assert walk.table.pool.num_available == walk.table.pool.num_blocks


def table(num_blocks: int = 16) -> SessionTable:
    return SessionTable(BlockPool(num_blocks, 4), LEASE_S)


def admit(sessions: SessionTable, item: Verify | Propose, now: float = 0.0, stream: str = "s") -> object:
    return sessions.admit(item, 5, stream, now)


def refusal(answer: object) -> RefusalReason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


def test_a_released_id_stays_refused() -> None:
    sessions = table()
    assert isinstance(admit(sessions, verify(1, 1, [1, 2])), Admitted)
    sessions.release(session_id(1), 0.0)
    assert refusal(admit(sessions, verify(1, 2, [1, 2]), now=3000.0)) is RefusalReason.RELEASED
    sessions.release(session_id(2), 0.0)  # never called: its first call is still under way
    assert refusal(admit(sessions, verify(2, 1, [1, 2]))) is RefusalReason.RELEASED
    assert not sessions.sessions and sessions.pool.num_used == 0


def test_a_session_called_within_its_lease_is_not_evicted_for_a_new_one() -> None:
    sessions = table(num_blocks=4)
    assert isinstance(admit(sessions, verify(1, 1, [1] * 8)), Admitted)
    assert refusal(admit(sessions, verify(2, 1, [2] * 8), now=LEASE_S - 1)) is RefusalReason.FULL
    assert session_id(1) in sessions.sessions
    assert isinstance(admit(sessions, verify(3, 1, [2] * 8), now=LEASE_S + 1), Admitted)
    assert session_id(1) not in sessions.sessions


def test_the_sessions_of_an_ended_stream_go_first() -> None:
    sessions = table(num_blocks=4)
    admit(sessions, verify(1, 1, [1] * 8), stream="gone")
    sessions.close_stream("gone")
    assert isinstance(admit(sessions, verify(2, 1, [2] * 8), now=1.0), Admitted)
    assert list(sessions.sessions) == [session_id(2)]


def test_a_running_session_is_neither_expired_nor_evicted() -> None:
    sessions = table(num_blocks=4)
    answer = admit(sessions, verify(1, 1, [1] * 8))
    assert isinstance(answer, Admitted)
    answer.session.running = True
    sessions.expire(10 * LEASE_S)
    assert refusal(admit(sessions, verify(2, 1, [2] * 8), now=10 * LEASE_S)) is RefusalReason.FULL
    assert session_id(1) in sessions.sessions


def test_a_call_that_does_not_fit_takes_nothing() -> None:
    sessions = table(num_blocks=4)
    admit(sessions, verify(1, 1, [1] * 4))
    used = sessions.pool.num_used
    assert refusal(admit(sessions, verify(2, 1, [2] * 8))) is RefusalReason.FULL
    assert sessions.pool.num_used == used and session_id(2) not in sessions.sessions


def test_committed_blocks_are_shared_only_under_an_equal_salt() -> None:
    """Families D46, D47."""
    sessions, text = table(), [1, 2, 3, 4, 5, 6, 7, 8, 9]
    first = admit(sessions, verify(1, 1, text))
    assert isinstance(first, Admitted) and first.keep == 0
    first.session.cached_len = 9
    sessions.publish(first.session)
    same = admit(sessions, verify(2, 1, text))
    assert isinstance(same, Admitted) and same.keep == 8
    salted = verify(3, 1, text)
    other = admit(sessions, replace(salted, call=replace(salted.call, salt="x")))
    assert isinstance(other, Admitted) and other.keep == 0
    sessions.check()


def test_speculated_tokens_are_never_shared() -> None:
    sessions = table()
    first = admit(sessions, propose(1, 1, [1, 2], 4, speculated=[3, 4, 5, 6]))
    assert isinstance(first, Admitted)
    first.session.cached_len = 6
    sessions.publish(first.session)
    second = admit(sessions, verify(2, 1, [1, 2, 3, 4, 5, 6]))
    assert isinstance(second, Admitted) and second.keep == 0


@pytest.mark.parametrize("seed", range(4))
def test_blocks_balance_under_random_takes_gives_names_and_shares(seed: int) -> None:
    rng, pool = random.Random(seed), BlockPool(24, 4)
    uses: list[int] = []
    for step in range(5_000):
        act = rng.randrange(4)
        if act == 0:
            count, before = rng.randrange(1, 8), pool.num_available
            taken = pool.take(count, rng.choice([None, *uses]))
            assert (taken is None) == (count > before)
            assert not set(taken or []) & set(uses)
            uses += taken or []
        elif act == 1 and uses:
            block = uses.pop(rng.randrange(len(uses)))
            pool.give([block])
        elif act == 2 and uses:
            block = rng.choice(uses)
            if block not in pool._names:
                pool.name(block, BlockName("", ROOT, (rng.randrange(40),)))
        else:
            shared = pool.share(BlockName("", ROOT, (rng.randrange(40),)))
            uses += [shared[0]] if shared else []
        assert pool.num_used == len(set(uses)), step
        pool.check()
        assert all(pool.num_users(block) == uses.count(block) for block in set(uses))
    pool.give(uses)
    assert pool.num_available == pool.num_blocks


def test_a_block_cannot_be_given_twice() -> None:
    pool = BlockPool(4, 4)
    blocks = pool.take(2)
    assert blocks == [0, 1] and pool.take(2, after=1) == [2, 3] and pool.take(1) is None
    pool.give(blocks)
    with pytest.raises(ValueError, match="no user"):
        pool.give(blocks)
