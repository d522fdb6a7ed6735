"""A coordinator's whole service over in-memory carriers, in virtual time: a request's bytes in, its chunks out.

Every answer is held against the oracle before a test sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness import scripted
from harness.carriers import PROMPT, Carrier, DeadDraft, DraftCarrier, Misbehaviour, Tamper, TargetCarrier
from harness.scripted import LogitsOf, ScriptedModel
from harness.virtual_time import now_ns, run_virtual

from coordinator.frontend import Frontend
from coordinator.gate import VocabularyGate
from coordinator.pool import Pool
from coordinator.replicas import Replica
from coordinator.service import CoordinatorService
from families import oracle
from families.models import LETTERS, WordTokenizer
from tandem.config import Config
from tandem.core.breaker import Breaker
from tandem.core.types import Description, Rule
from tandem.model.engine import Engine
from tandem.v1 import coordinator_pb2 as pb

T = TypeVar("T")
PROMPT_IDS = (1, 2, 3)
NUM_BLOCKS, BLOCK_SIZE = 96, 4
KS = (1, 2, 4, 8)
RULES = (Rule.GREEDY, Rule.REJECTION, Rule.COUPLED)
SAME_TEXT = (Rule.GREEDY, Rule.COUPLED)  # rules under which the text does not depend on the draft
FINGERPRINT = "scripted"


@dataclass
class Answer:
    """The chunks of one request."""

    chunks: list[pb.GenerateChunk] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def origins(self) -> list[int]:
        return [origin for chunk in self.chunks for origin in chunk.origins]

    @property
    def logprobs(self) -> list[pb.TokenLogprobs]:
        return [row for chunk in self.chunks for row in chunk.logprobs]

    @property
    def finish(self) -> Any:
        return self.chunks[-1].finish

    @property
    def stats(self) -> Any:
        return self.finish.speculation

    @property
    def fallbacks(self) -> dict[str, int]:
        return dict(self.stats.num_fallbacks)

    @property
    def last_slot(self) -> int:
        """Which slot of its block the last token has; the bonus has the slot behind the block."""
        return len(self.chunks[-1].token_ids) - 1


@dataclass(frozen=True)
class Ask:
    """One request in the words of the tests."""

    prompt: tuple[int, ...] = PROMPT_IDS
    rule: Rule = Rule.GREEDY
    k: int = 4
    pipelined: bool = True
    max_tokens: int | None = 16
    seed: int = 7
    stops: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    min_tokens: int = 0
    prior: tuple[int, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the request itself

    def message(self) -> pb.GenerateRequest:
        acceptance = pb.ACCEPTANCE_COUPLED if self.rule is Rule.COUPLED else pb.ACCEPTANCE_REJECTION
        temperature = 0.0 if self.rule is Rule.GREEDY else 1.0
        return pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=self.prompt),
            sampling=pb.SamplingParams(**{"temperature": temperature, "seed": self.seed, **self.sampling}),
            stopping=pb.StoppingParams(
                max_tokens=self.max_tokens, stop=self.stops, stop_token_ids=self.ends, min_tokens=self.min_tokens
            ),
            speculation=pb.SpeculationParams(
                num_tokens=self.k,
                acceptance=acceptance,
                lookahead=pb.LOOKAHEAD_CHAIN if self.pipelined else pb.LOOKAHEAD_OFF,
            ),
            prior_output=pb.TokenIds(ids=self.prior),
            **self.fields,
        )


class Desk:
    """Where requests are handed in."""

    def __init__(
        self, service: CoordinatorService, pool: Pool, target: Carrier, draft: Carrier | None, words: Sequence[bytes]
    ) -> None:
        self.service, self.pool, self.target, self.draft, self.words = service, pool, target, draft, words
        self.model_ends: frozenset[int] = frozenset()
        self.context = scripted.CONTEXT_LENGTH

    async def ask(self, ask: Ask, into: Answer | None = None) -> Answer:
        """Runs a request to its end and checks all that can be said of its answer without a reference."""
        answer = into or Answer()
        async with contextlib.aclosing(self.service.generate(ask.message().SerializeToString())) as chunks:
            async for chunk in chunks:
                answer.chunks.append(chunk)
        self._check(ask, answer)
        return answer

    async def ask_all(self, asks: Iterable[Ask]) -> list[Answer]:
        """All at once."""
        return await asyncio.gather(*(self.ask(ask) for ask in asks))

    @property
    def carriers(self) -> list[Carrier]:
        return [carrier for carrier in (self.target, self.draft) if carrier is not None]

    async def assert_nothing_left(self) -> None:
        """No session, call, slot or task that a request began."""
        await asyncio.sleep(5.0)  # virtual: all that is under way arrives
        assert not self.service._ids and not self.service._admission.num_running
        for carrier in self.carriers:
            carrier.engine.table.check()
            assert not carrier.engine.table.sessions and not carrier.engine.table.pool.num_used
            assert not carrier.engine.busy and not carrier.exchange._calls
        assert len(asyncio.all_tasks()) == 1 + 2 * len(self.carriers)  # this one, and those of the carriers

    def _check(self, ask: Ask, answer: Answer) -> None:
        oracle.check_chunks(answer.chunks, len(ask.prior))
        oracle.check_counts(answer.chunks, len(ask.prior))
        ids = [*ask.prior, *answer.ids]
        room = self.context - len(ask.prompt)
        is_short = ask.max_tokens is None and room < 256
        full = oracle.CONTEXT_FULL if is_short else oracle.MAX_TOKENS
        max_tokens = min(256, room) if ask.max_tokens is None else ask.max_tokens
        ended = oracle.ended(ids, self.words, max_tokens, {*ask.ends, *self.model_ends}, ask.stops, full)
        finish = answer.finish
        assert (ended.ids, ended.reason, ended.stop) == (ids, finish.reason, finish.stop)
        assert finish.stop_token_id == (ids[-1] if ended.reason == oracle.END_TOKEN else 0)
        assert answer.text == ended.text or ask.prior
        assert len(answer.logprobs) == (len(answer.ids) if "logprobs" in ask.sampling else 0)
        assert finish.num_prompt_tokens == len(ask.prompt)


@contextlib.asynccontextmanager
async def open_desk(
    target: LogitsOf,
    draft: LogitsOf | None,
    *,
    words: Sequence[bytes] = LETTERS,
    ends: Collection[int] = (),
    draft_ends: Collection[int] = (),
    context: int = scripted.CONTEXT_LENGTH,
    draft_context: int = scripted.CONTEXT_LENGTH,
    network: Misbehaviour = PROMPT,
    tamper: Tamper | None = None,
    dead_draft: bool = False,
    **settings: Any,
) -> AsyncIterator[Desk]:
    """A desk before a target and perhaps a draft; when it closes nothing may be left behind."""

    def engine(make: Callable[..., Engine], model: LogitsOf, length: int) -> Engine:
        scripted_model = ScriptedModel(model, NUM_BLOCKS, BLOCK_SIZE)
        return make(scripted_model, len(words), now_ns, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, context=length)

    target_carrier = TargetCarrier(lambda: engine(scripted.target_engine, target, context), network, seed=1)
    draft_carrier = None
    if draft is not None:
        kind = DeadDraft if dead_draft else DraftCarrier
        draft_carrier = kind(
            lambda: engine(scripted.draft_engine, draft, draft_context), network, seed=2, tamper=tamper
        )
    drafts = ["nowhere:1"] if draft else []
    config = Config(coordinator={"drafts": drafts, "draft_wait_s": 0.5, **settings})  # type: ignore[arg-type]
    frontend = Frontend(WordTokenizer(words))
    frontend._thread = _AtOnce()  # type: ignore[assignment]  # no thread can wake a loop whose time is virtual
    pool = Pool(config, VocabularyGate(frontend.pieces, frontend.vocabulary_hash))
    described = _description(len(words), context, ends)
    pool.targets.add(Replica(target_carrier.exchange, Breaker(pause_s=5.0), described))
    if draft_carrier is not None:
        described = _description(len(words), draft_context, draft_ends)
        pool.drafts.add(Replica(draft_carrier.exchange, Breaker(pause_s=5.0), described))
    desk = Desk(CoordinatorService(config, frontend, pool, "scripted"), pool, target_carrier, draft_carrier, words)
    desk.model_ends, desk.context = frozenset(ends), context
    async with contextlib.AsyncExitStack() as stack:
        for carrier in desk.carriers:
            await stack.enter_async_context(carrier.running())
        yield desk
        await desk.assert_nothing_left()


class _AtOnce(Executor):
    """Runs what is submitted in the caller's stack."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


def _description(vocab_size: int, context: int, ends: Collection[int]) -> Description:
    return Description(
        model="scripted",
        fingerprint=FINGERPRINT,
        context_length=context,
        end_token_ids=frozenset(ends),
        head_width=vocab_size,
        num_pieces=vocab_size,
        vocabulary_hash="",
        kv_budget_tokens=NUM_BLOCKS * BLOCK_SIZE,
        max_block=16,
        incarnation="",
    )


def at_desk(scenario: Callable[[Desk], Any], target: LogitsOf, draft: LogitsOf | None, **options: Any) -> Any:
    """What `scenario` returns, run in virtual time at a desk of its own."""

    async def run() -> Any:
        async with open_desk(target, draft, **options) as desk:
            return await scenario(desk)

    return run_virtual(run())
