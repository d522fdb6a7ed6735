"""The real decode loop over workers that answer in the caller's stack: real ledger, sessions, jobs, rules; no network.

What a coin may do to a proposal (the tokens come partly, late, or the worker is lost and forgets) is drawn from a
generator that knows nothing of the tokens. A verify may lose its worker too; it is then asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness import scripted
from torch import Tensor

from coordinator.decode import decode
from coordinator.drafting import Drafting
from coordinator.patience import Patience
from coordinator.replicas import Replica, Replicas
from coordinator.timing import Stopwatch
from coordinator.workers import DraftSession, TargetSession
from tandem.core.breaker import Breaker
from tandem.core.ledger import Commit, Ledger
from tandem.core.load import Pace
from tandem.core.lookup import TextIndex
from tandem.core.pacing import Paces, Steady
from tandem.core.stopping import Stopping, StopRules
from tandem.core.types import Call, Item, Propose, Rule, Sampling, Verdict, Verify
from tandem.errors import WorkerLost
from tandem.model.engine import Engine
from tandem.rpc.exchange import Exchange, OpenCall

PROMPT = (3, 0)
_UNCHANGED = Sampling()


@dataclass(frozen=True)
class Way:
    """How sequences are generated."""

    rule: Rule = Rule.REJECTION
    pipelined: bool = True
    k: int = 3
    looks_up: bool = False  # every other block, where the text has a match
    misfortune: float = 0.0  # chance that a call does not get all of its answer
    num_tokens: int = 5  # looked at
    max_tokens: int = 9  # asked for: a block ahead of the last one looked at is drafted as in the middle of a text
    sampling: Sampling = _UNCHANGED


@dataclass
class Judged:
    """One verify, and what the target said."""

    item: Verify
    verdict: Verdict


@dataclass
class Sequence_:
    """One generation."""

    output: list[int]
    commits: list[Commit]
    judged: list[Judged] = field(default_factory=list)
    ledger: Ledger | None = None


class DirectExchange:
    """Both ends of a worker's calls: `open` runs the engine until it is idle."""

    connected = True
    draining = False
    num_sessions = 0

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.listeners: list[Callable[[], None]] = []
        self.coin = random.Random(0)
        self.misfortune = 0.0
        self.judged: list[Judged] = []
        self._lost_before = False

    def open(self, item: Verify | Propose) -> OpenCall:
        call = OpenCall(lambda: None)
        self.engine.receive(self, [item])
        replies = []
        while self.engine.busy:
            replies += [reply for _, reply in self.engine.step() if reply.number == item.call.number]
        num_coming, is_lost = self._fate(item, len(replies))
        for reply in replies[:num_coming]:
            call.put(reply)
            if isinstance(item, Verify) and isinstance(reply.body, Verdict):
                self.judged.append(Judged(item, reply.body))
        if is_lost:
            self.engine.table.drop(item.call.session_id)
            call.put(WorkerLost("by coin"))
        return call

    def _fate(self, item: Item, num_replies: int) -> tuple[int, bool]:
        """How many of the replies come, and whether the worker is lost then; else the rest is late for ever."""
        if self.misfortune == 0.0 or self.coin.random() >= self.misfortune:
            self._lost_before = False
            return num_replies, False
        if isinstance(item, Verify):
            self._lost_before = not self._lost_before  # never twice in a row: too many losses end a request
            return (0, True) if self._lost_before else (num_replies, False)
        return self.coin.randrange(num_replies), self.coin.random() < 0.5

    def cancel(self, session_id: bytes, number: int) -> None:
        """Nothing runs between two calls."""

    def release(self, session_id: bytes) -> None:
        self.engine.table.drop(session_id)


class Pair:
    """A bigram target and a bigram draft behind real engines."""

    def __init__(self, target: Tensor, draft: Tensor) -> None:
        num_ids = target.shape[-1]
        target_model = scripted.ScriptedModel(scripted.bigram(target), num_blocks=64)
        draft_model = scripted.ScriptedModel(scripted.bigram(draft), num_blocks=64)
        self.target = DirectExchange(scripted.target_engine(target_model, num_ids, _no_clock, num_blocks=64))
        self.draft = DirectExchange(scripted.draft_engine(draft_model, num_ids, _no_clock, num_blocks=64))

    def generate(self, way: Way, seeds: Sequence[int]) -> list[Sequence_]:
        """One sequence for each seed."""

        async def all_of_them() -> list[Sequence_]:
            return [await self._one(way, seed) for seed in seeds]

        return asyncio.run(all_of_them())

    async def _one(self, way: Way, seed: int) -> Sequence_:
        for exchange in (self.target, self.draft):
            exchange.coin, exchange.misfortune = random.Random(f"coin {seed} {exchange is self.draft}"), way.misfortune
            exchange.judged = []
        call = new_call(way.rule, way.sampling, seed, len(PROMPT) + way.max_tokens)
        stopping = Stopping(StopRules(way.max_tokens), lambda tokens: "")
        ledger = Ledger(PROMPT, stopping)
        pace, tokens = Pace(way.k, way.pipelined), ledger.tokens.ids
        paces = LookingUp(pace, tokens) if way.looks_up else Steady(pace)
        commits = await run(ledger, call, self.target, self.draft, paces, until=way.num_tokens)
        output = [token for commit in commits for token in commit.tokens]
        return Sequence_(output, commits, self.target.judged, ledger)


@dataclass(frozen=True)
class LookingUp(Steady):
    """Takes a block from the text in the place of the model's, wherever the text's length is odd and has a match."""

    tokens: Sequence[int] = ()

    def look_up(self) -> tuple[int, ...]:
        match = TextIndex(self.tokens).match() if len(self.tokens) % 2 else None
        return match.continuation(self.tokens, self.pace.num_tokens) if match else ()


def new_call(rule: Rule, sampling: Sampling, seed: int, max_length: int) -> Call:
    """A call before its first number; its seed is any 64 bits, as the coordinator gives them."""
    return Call(
        session_id=seed.to_bytes(16, "big"),
        number=0,
        round=0,
        rule=rule,
        max_length=max_length,
        seed=random.Random(f"seed {seed}").getrandbits(64),
        sampling=sampling,
    )


async def run(
    ledger: Ledger,
    call: Call,
    target: DirectExchange | Exchange,
    draft: DirectExchange | Exchange,
    paces: Paces,
    until: int,
    draft_wait_s: float = 0.0,
) -> list[Commit]:
    """Decodes until the output ends or has `until` tokens. Nobody waits for a token of the draft that is not there,
    unless `draft_wait_s` says so.
    """
    targets, drafts = (Replicas([Replica(each, Breaker(pause_s=0.0))]) for each in (target, draft))  # type: ignore[arg-type]
    target_session = TargetSession(targets, call, ledger, Patience(worker_s=30.0, memory_s=30.0))
    draft_session = DraftSession(drafts, call, ledger, draft_wait_s)
    rounds = decode(ledger, target_session, Drafting(ledger, draft_session, call.rule), Stopwatch(), paces)
    commits, num_tokens = [], 0
    try:
        async with contextlib.aclosing(rounds):
            async for commit in rounds:
                commits.append(commit)
                num_tokens += len(commit.tokens)
                if num_tokens >= until:
                    break
    finally:
        target_session.release()
        draft_session.release()
    return commits


def _no_clock() -> int:
    return 0
