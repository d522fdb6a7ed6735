"""The public door: validate, admit, run, stream. Errors become statuses in one place."""

from __future__ import annotations

import contextlib
import logging
import secrets
import uuid
from collections.abc import AsyncGenerator, Iterator
from importlib.metadata import version
from typing import Any

from coordinator.decode import decode
from coordinator.drafting import Drafting
from coordinator.frontend import Frontend
from coordinator.pool import Pool
from coordinator.timing import Stopwatch
from coordinator.validate import Request, check_fields, make_request
from tandem.config import Config
from tandem.core.ledger import Commit, Ledger
from tandem.core.stopping import Stopping
from tandem.core.types import Call
from tandem.errors import DuplicateRequest, Overloaded
from tandem.rpc.codec import public as codec
from tandem.rpc.codec.public import Durations

_log = logging.getLogger(__name__)
_RETRY_AFTER_S = 1.0


class CoordinatorService:
    """Generate and Status, on plain values."""

    def __init__(self, config: Config, frontend: Frontend, pool: Pool, model: str) -> None:
        self._config = config
        self._frontend = frontend
        self._pool = pool
        self._model = model
        self._running: set[str] = set()

    async def generate(self, message: bytes) -> AsyncGenerator[Any]:
        """Chunks of one request. Raises RequestError."""
        stopwatch = Stopwatch()
        raw = codec.parse_request(message)
        check_fields(raw, self._model)
        with self._admitted(raw.request_id or uuid.uuid4().hex) as request_id:
            target = self._pool.target()
            prompt = await self._frontend.prompt(raw)
            request = make_request(raw, prompt, target, self._config.limits.default_max_tokens)
            first = True
            async with contextlib.aclosing(self._commits(request, stopwatch)) as commits:
                async for commit, ledger in commits:
                    chunk = codec.commit_to_pb(request_id, commit)
                    if first:
                        codec.add_start(chunk, request.seed, target.fingerprint, request.prompt)
                    first = False
                    if commit.ending is not None:
                        _add_finish(chunk, commit, ledger, stopwatch)
                    yield chunk

    async def status(self) -> object:
        """Who serves, and how much runs."""
        workers = await self._pool.states()
        return codec.status_to_pb(self._model, version("tandem-serving"), workers, len(self._running), 0)

    @contextlib.contextmanager
    def _admitted(self, request_id: str) -> Iterator[str]:
        if request_id in self._running:
            raise DuplicateRequest(f"request_id: {request_id} is running")
        if len(self._running) >= self._config.coordinator.max_running:
            raise Overloaded("as many requests run as may", _RETRY_AFTER_S)
        self._running.add(request_id)
        try:
            yield request_id
        finally:
            self._running.remove(request_id)

    async def _commits(self, request: Request, stopwatch: Stopwatch) -> AsyncGenerator[tuple[Commit, Ledger]]:
        """The request's life on the workers; leaves no session behind, however it ends."""
        stopping = Stopping(request.stop_rules, self._frontend.decode)
        num_tokens, draft_context = self._pool.drafting(request.num_draft_tokens)
        ledger = Ledger(request.prompt, stopping, num_tokens, draft_context)
        resumed = ledger.resume(request.prior_output)
        stopwatch.admitted()
        if resumed.ending is not None:
            yield resumed, ledger
            return
        call = _call(request)
        with self._pool.sessions(call, ledger) as (target, draft):
            rounds = decode(ledger, target, Drafting(ledger, draft), stopwatch, request.pipelined and num_tokens > 0)
            async with contextlib.aclosing(rounds):
                async for commit in rounds:
                    stopwatch.token_came()
                    yield commit, ledger


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


def _add_finish(chunk: Any, commit: Commit, ledger: Ledger, stopwatch: Stopwatch) -> None:
    assert commit.ending is not None
    durations = Durations(
        stopwatch.queue_s, stopwatch.first_token_s, stopwatch.total_s, stopwatch.verify_s, stopwatch.draft_wait_s
    )
    codec.add_finish(
        chunk, commit.ending, ledger.num_prompt_tokens, ledger.num_output_tokens, ledger.statistics, durations
    )
