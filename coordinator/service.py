"""The public door: validate, admit, run, stream. Errors become statuses in one place."""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from importlib.metadata import version
from typing import Any

from coordinator.admission import Admission, Limits
from coordinator.decode import decode
from coordinator.drafting import Drafting
from coordinator.frontend import Frontend
from coordinator.metrics import CoordinatorMetrics
from coordinator.pool import Pool
from coordinator.request_log import RequestLog
from coordinator.streaming import one_ahead
from coordinator.timing import Stopwatch
from coordinator.validate import Request, check_fields, make_request
from tandem.config import Config
from tandem.core.ledger import Commit, Ledger
from tandem.core.load import PLAIN, Batch, Pace
from tandem.core.pacing import Adaptive, Paces, Steady
from tandem.core.stopping import Ending, Stopping
from tandem.core.types import Call
from tandem.errors import DuplicateRequest
from tandem.rpc.codec import public as codec
from tandem.rpc.codec.public import Durations, Finish


class CoordinatorService:
    """Generate and Status, on plain values."""

    def __init__(
        self, config: Config, frontend: Frontend, pool: Pool, model: str, metrics: CoordinatorMetrics | None = None
    ) -> None:
        self._config = config
        self._frontend = frontend
        self._pool = pool
        self._model = model
        self._ids: set[str] = set()  # of requests that run or wait
        settings = config.coordinator
        self._batch = Batch()
        self._admission = Admission(Limits(settings.max_running, settings.max_waiting, settings.max_waiting_tokens))
        self.metrics = metrics or CoordinatorMetrics()
        self.metrics.watch(lambda: self._admission.num_running, lambda: self._admission.num_waiting)

    async def generate(self, message: bytes, log: RequestLog | None = None) -> AsyncGenerator[Any]:
        """Chunks of one request; `log` hears its id, and its end if that is a good one. Raises RequestError."""
        stopwatch, log = Stopwatch(), log or RequestLog(self.metrics)
        raw = codec.parse_request(message)
        log.request_id = raw.request_id
        check_fields(raw, self._model)
        with self._named(raw.request_id or uuid.uuid4().hex) as request_id:
            log.request_id = request_id
            target = self._pool.target()
            prompt = await self._frontend.prompt(raw)
            request = make_request(raw, prompt, target, self._config.limits.default_max_tokens)
            first = True
            async with contextlib.aclosing(one_ahead(self._commits(request, target.fingerprint, stopwatch))) as commits:
                async for commit, finish in commits:
                    chunk = codec.commit_to_pb(request_id, commit)
                    if first:
                        codec.add_start(chunk, request.seed, target.fingerprint, request.prompt)
                    first = False
                    if finish is not None:
                        codec.add_finish(chunk, finish)
                        log.finished(finish, max(finish.num_output_tokens - len(request.prior_output), 0))
                    yield chunk

    async def status(self) -> object:
        """Who serves, and how much runs."""
        workers = await self._pool.states()
        return codec.status_to_pb(
            self._model, version("tandem-serving"), workers, self._admission.num_running, self._admission.num_waiting
        )

    def _paces(self, request: Request, tokens: Sequence[int]) -> Paces:
        """As the caller asked; else as it pays; without a draft worker, plainly."""
        if request.num_draft_tokens is not None:
            ahead = request.lookahead is not False and request.num_draft_tokens > 0
            return Steady(Pace(request.num_draft_tokens, ahead))
        if not self._pool.has_draft:
            return Steady(PLAIN)
        self._batch.num_running = self._admission.num_running
        return Adaptive(self._batch, (False, True) if request.lookahead is None else (request.lookahead,), tokens)

    @contextlib.contextmanager
    def _named(self, request_id: str) -> Iterator[str]:
        if request_id in self._ids:
            raise DuplicateRequest(f"request_id: {request_id} is running")
        self._ids.add(request_id)
        try:
            yield request_id
        finally:
            self._ids.remove(request_id)

    async def _commits(
        self, request: Request, fingerprint: str, stopwatch: Stopwatch
    ) -> AsyncGenerator[tuple[Commit, Finish | None]]:
        """What becomes final, and the finish with the last of it."""
        stopping = Stopping(request.stop_rules, self._frontend.decode)
        ledger = Ledger(request.prompt, stopping, self._pool.draft_context)
        resumed = ledger.resume(request.prior_output)
        if resumed.ending is not None:
            yield resumed, _finish(resumed.ending, ledger, stopwatch, 0)
            return
        async with self._admission.slot(request.max_length):
            stopwatch.admitted()
            # one session on each worker, however the request ends
            sessions = self._pool.sessions(_call(request), ledger, fingerprint)
            with sessions as (target, draft), contextlib.closing(self._paces(request, ledger.tokens.ids)) as paces:
                rounds = decode(ledger, target, Drafting(ledger, draft, request.rule), stopwatch, paces)
                async with contextlib.aclosing(rounds) as commits:
                    async for commit in commits:
                        self._batch.num_running = self._admission.num_running
                        stopwatch.token_came()
                        ending = commit.ending
                        yield commit, _finish(ending, ledger, stopwatch, target.num_reused) if ending else None


def _call(request: Request) -> Call:
    return Call(
        session_id=secrets.token_bytes(16),
        number=0,
        round=0,
        rule=request.rule,
        max_length=request.max_length,
        seed=request.seed,
        sampling=request.sampling,
        min_tokens=request.min_tokens,
        end_token_ids=request.stop_rules.end_token_ids,
        salt=request.salt,
    )


def _finish(ending: Ending, ledger: Ledger, stopwatch: Stopwatch, num_reused: int) -> Finish:
    durations = Durations(
        queue_s=stopwatch.queue_s,
        first_token_s=stopwatch.first_token_s,
        total_s=stopwatch.total_s,
        verify_s=stopwatch.verify_s,
        prompt_s=stopwatch.prompt_s,
        draft_wait_s=stopwatch.draft_wait_s,
    )
    return Finish(
        ending,
        ledger.num_prompt_tokens,
        ledger.num_output_tokens,
        min(num_reused, ledger.num_prompt_tokens),
        ledger.statistics,
        durations,
    )
