"""One request through the real decode loop, over carriers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from coordinator.decode import decode
from coordinator.drafting import Drafting
from coordinator.patience import Patience
from coordinator.replicas import Replica, Replicas
from coordinator.timing import Stopwatch
from coordinator.workers import DraftSession, TargetSession
from harness import scripted
from harness.carriers import PROMPT, Carrier, DraftCarrier, Misbehaviour, TargetCarrier
from harness.tiny import tiny_model
from harness.virtual_time import now_ns
from tandem.core.breaker import Breaker
from tandem.core.ledger import Commit, Ledger
from tandem.core.load import Pace
from tandem.core.pacing import Steady
from tandem.core.statistics import Statistics
from tandem.core.stopping import Stopping, StopRules
from tandem.core.types import Call, Rule, Sampling
from tandem.model.engine import Engine
from tandem.model.runner import Runner

GREEDY = Sampling(temperature=0.0)


def as_bytes(tokens: Sequence[int]) -> str:
    """A byte-level tokenizer's decode, for id = byte value."""
    return bytes(token % 256 for token in tokens).decode("utf-8", "replace")


@dataclass
class Generated:
    """What one request gave."""

    commits: list[Commit] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def tokens(self) -> list[int]:
        return [token for commit in self.commits for token in commit.tokens]

    @property
    def text(self) -> str:
        return "".join(commit.text for commit in self.commits)

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.began_s


@dataclass
class Workers:
    """The two carriers that requests run over, and what the requests share."""

    target: Carrier
    draft: Carrier | None
    draft_wait_s: float = 0.5
    breaker: Breaker = field(default_factory=lambda: Breaker(pause_s=1.0))
    patience: Patience = field(default_factory=lambda: Patience(worker_s=30.0, memory_s=30.0))
    draft_context: int | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Workers]:
        async with contextlib.AsyncExitStack() as stack:
            for carrier in self.carriers:
                await stack.enter_async_context(carrier.running())
            yield self

    @property
    def carriers(self) -> list[Carrier]:
        return [carrier for carrier in (self.target, self.draft) if carrier is not None]

    @functools.cached_property
    def targets(self) -> Replicas:
        return Replicas([Replica(self.target.exchange, Breaker(pause_s=1.0))])

    @functools.cached_property
    def drafts(self) -> Replicas:
        return Replicas([Replica(self.draft.exchange, self.breaker)] if self.draft is not None else [])

    async def settle(self) -> None:
        """Virtual time enough for all that is under way to arrive."""
        await asyncio.sleep(5.0)

    def assert_nothing_left(self) -> None:
        """No session on a worker, no open call here, all memory free.

        A stream that breaks may take a release with it: what it leaves may be evicted at once, and goes with its lease.
        """
        for carrier in self.carriers:
            table = carrier.engine.table
            if carrier.num_breaks:
                assert all(session.stream is None and not session.running for session in table.sessions.values())
                table.expire(1e9)
            table.check()
            assert not table.sessions and table.pool.num_used == 0
            assert not carrier.engine.busy
            assert not carrier.exchange._calls


async def generate(
    workers: Workers,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    k: int,
    pipelined: bool = True,
    ends: Iterable[int] = (),
    stops: tuple[str, ...] = (),
    rule: Rule = Rule.GREEDY,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    session_id: bytes | None = None,
    into: Generated | None = None,
    on_commit: Callable[[Commit], None] = lambda commit: None,
) -> Generated:
    """Runs one request to its end, or to its cancellation. `into` holds what came until then."""
    loop, result = asyncio.get_running_loop(), into or Generated()
    rules = StopRules(max_tokens, end_token_ids=frozenset(ends), stops=stops)
    ledger = Ledger(prompt, Stopping(rules, as_bytes), workers.draft_context)
    call = Call(
        session_id=session_id or workers.rng.randbytes(16),
        number=0,
        round=0,
        rule=rule,
        max_length=len(prompt) + max_tokens,
        seed=seed,
        sampling=sampling,
        end_token_ids=frozenset(ends),
    )
    target = TargetSession(workers.targets, call, ledger, workers.patience)
    draft = _draft_session(workers, call, ledger)
    result.statistics, result.began_s = ledger.statistics, loop.time()
    try:
        rounds = decode(
            ledger, target, Drafting(ledger, draft, rule), Stopwatch(), Steady(Pace(k, pipelined and k > 0))
        )
        async with contextlib.aclosing(rounds):
            async for commit in rounds:
                result.commits.append(commit)
                on_commit(commit)
    finally:
        target.release()
        if draft is not None:
            draft.release()
        result.ended_s = loop.time()
    return result


def _draft_session(workers: Workers, call: Call, ledger: Ledger) -> DraftSession | None:
    if workers.draft is None:
        return None
    return DraftSession(workers.drafts, call, ledger, workers.draft_wait_s)


def scripted_workers(
    vocab_size: int,
    target: scripted.LogitsOf,
    draft: scripted.LogitsOf | None,
    *,
    target_network: Misbehaviour = PROMPT,
    draft_network: Misbehaviour = PROMPT,
    seed: int = 0,
    num_blocks: int = scripted.NUM_BLOCKS,
) -> Workers:
    """Workers around scripted models; call it with a loop running. `num_blocks` is the target's memory."""

    def target_engine() -> Engine:
        return scripted.target_engine(scripted.ScriptedModel(target), vocab_size, now_ns, num_blocks=num_blocks)

    def draft_engine() -> Engine:
        assert draft is not None
        return scripted.draft_engine(scripted.ScriptedModel(draft), vocab_size, now_ns)

    return Workers(
        TargetCarrier(target_engine, target_network, seed=2 * seed),
        DraftCarrier(draft_engine, draft_network, seed=2 * seed + 1) if draft is not None else None,
    )


def tiny_engine(
    role: str, name: str, num_blocks: int = 128, block_size: int = 8, clock_ns: Callable[[], int] = now_ns
) -> Engine:
    """An engine around one of the tiny transformers models, on the running loop's clock unless another is given."""
    model = tiny_model(name)
    make = scripted.target_engine if role == "target" else scripted.draft_engine
    return make(
        Runner(model, num_blocks, block_size),
        model.num_pieces,
        clock_ns,
        num_blocks=num_blocks,
        block_size=block_size,
        context=model.context_length,
        num_embeddings=model.head_width,
    )


def tiny_workers(
    draft: str | None = "near",
    *,
    target_network: Misbehaviour = PROMPT,
    draft_network: Misbehaviour = PROMPT,
    seed: int = 0,
) -> Workers:
    """Workers around tiny transformers models; call it with a loop running."""
    return Workers(
        TargetCarrier(lambda: tiny_engine("target", "target"), target_network, seed=2 * seed),
        DraftCarrier(lambda: tiny_engine("draft", draft), draft_network, seed=2 * seed + 1) if draft else None,
        draft_context=tiny_model(draft).context_length if draft else None,
    )
