"""The step loop of a worker: many sessions' calls, one forward pass a step.

Everything here runs on one thread, so nothing is locked. A call is a job; a job says which tokens it wants fed, and
gets the logits of its last rows once all of them are in the cache.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from tandem.core.gathering import Gathering
from tandem.core.plan import SequencePlan, StepPlan
from tandem.core.schedule import share_step
from tandem.core.sessions import Admitted, InvalidCall, Repeated, Session, SessionTable, check_call
from tandem.core.types import (
    Call,
    Cancel,
    Drafted,
    Item,
    Malformed,
    Propose,
    Refusal,
    RefusalReason,
    Release,
    Reply,
    Verdict,
    Verify,
)
from tandem.model.work import Work

_LONG = 33  # rows from which a call counts as a prompt: more than any verify has
_log = logging.getLogger(__name__)

Answer = tuple[Hashable, Reply]  # stream, reply


class Job(Protocol):
    """One call at work."""

    pending: list[int]  # tokens still to be fed, in order; empty: the job needs no forward pass
    num_logits: int  # rows wanted from the end of what is fed
    done: bool

    def advance(self, logits: torch.Tensor | None) -> Verdict | Drafted:
        """Takes the logits [num_logits, head_rows] of its last rows; sets `pending` or `done`."""
        ...

    def give_up(self) -> Drafted | Refusal:
        """The answer where time is up."""
        ...


class Forward(Protocol):
    """A model on one rank or many."""

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits [sum of num_logits, head_rows], in plan order."""
        ...


@dataclass(slots=True, eq=False)
class _Running:
    """A job with what the engine keeps beside it."""

    session: Session
    call: Call
    job: Job
    received_ns: int
    num_rows: int  # that its job had to feed when it last began or went on
    started_ns: int | None = None
    compute_ns: int = 0

    def is_late(self, now_ns: int) -> bool:
        budget_s = self.call.budget_s
        return budget_s is not None and now_ns - self.received_ns > budget_s * 1e9

    def plan(self, num_rows: int) -> SequencePlan:
        complete = num_rows == len(self.job.pending)
        return SequencePlan(
            tokens=tuple(self.job.pending[:num_rows]),
            start=self.session.cached_len,
            blocks=tuple(self.session.blocks),
            num_logits=self.job.num_logits if complete else 0,
        )


class Engine:
    """Admits calls, runs them step by step, and says what to answer on which stream."""

    def __init__(
        self,
        model: Forward,
        table: SessionTable,
        open_job: Callable[[Session, Verify | Propose, int], Job],
        max_step_tokens: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`open_job(session, call, keep)` starts a job that feeds from `keep` on, or raises InvalidCall."""
        self._model = model
        self.table = table
        self._open_job = open_job
        self._max_step_tokens = max_step_tokens
        self.clock_ns = clock_ns
        self._running: dict[bytes, _Running] = {}
        self._gathering = Gathering()
        self._answers: list[Answer] = []
        self.work = Work()

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return bool(self._running or self._answers)

    @property
    def wait_s(self) -> float:
        """How long the next step should wait for the sessions of the last one, at most; 0: it begins."""
        rows = [len(run.job.pending) for run in self._running.values()]
        if self._answers or 0 in rows or sum(rows) >= self._max_step_tokens:
            return 0.0
        return self._gathering.wait_s(len(rows), self._now())

    def receive(self, stream: Hashable, items: Iterable[Item], came_ns: int | None = None) -> None:
        """Takes what came on `stream`, now or at `came_ns`; takes effect at this border between two steps."""
        came_s = self._now() if came_ns is None else came_ns / 1e9
        for item in items:
            match item:
                case Verify() | Propose():
                    self.work.num_received += 1
                    self._gathering.returned(item.call.session_id, came_s)
                    self._start(stream, item)
                case Malformed(session_id, number, message):
                    self._answers.append((stream, Reply(session_id, number, Refusal(RefusalReason.INVALID, message))))
                case Cancel(session_id, number):
                    self._end(session_id, number)
                case Release(session_id):
                    self._running.pop(session_id, None)
                    self._gathering.ended(session_id)
                    self.table.release(session_id, self._now())
                    if not self.table.sessions:
                        self.work.rest()

    def close_stream(self, stream: Hashable) -> None:
        """Ends the calls of a stream that is gone; its sessions may be evicted from now on."""
        for session in self.table.close_stream(stream):
            self._running.pop(session.session_id, None)
            self._gathering.ended(session.session_id)
            session.running = False

    def step(self) -> list[Answer]:
        """One forward pass over all ready rows, and what it lets us answer."""
        self.table.expire(self._now())
        self._expire()
        running = list(self._running.values())
        rows = share_step(
            [len(run.job.pending) for run in running],
            self._max_step_tokens,
            _LONG,
            sizes=[run.num_rows for run in running],
            tails=[run.job.num_logits for run in running],
        )
        shares = [(run, count) for run, count in zip(running, rows, strict=True) if count or not run.job.pending]
        if shares:
            self._step(shares)
        self.work.num_turns += bool(shares or not running)
        self.work.num_running = len(self._running)
        self.work.num_unstarted = sum(run.started_ns is None for run in self._running.values())
        answers, self._answers = self._answers, []
        return answers

    def _start(self, stream: Hashable, item: Verify | Propose) -> None:
        extra = len(item.block.tokens) if isinstance(item, Verify) else item.num_tokens
        try:
            check_call(item)
            self._supersede(item.call)
            admitted = self.table.admit(item, extra + 1, stream, self._now())
            if isinstance(admitted, Repeated):
                self._answers += [(stream, reply) for reply in admitted.session.replies]
            elif isinstance(admitted, Refusal):
                self._refuse(stream, item.call, admitted)
            else:
                self._open(admitted, item)
        except InvalidCall as error:
            self._refuse(stream, item.call, Refusal(RefusalReason.INVALID, str(error)))

    def _open(self, admitted: Admitted, item: Verify | Propose) -> None:
        session = admitted.session
        for victim in admitted.preempted:
            if victim.running:
                self._finish(self._running[victim.session_id], Refusal(RefusalReason.PREEMPTED, "for an older session"))
        job = self._open_job(session, item, admitted.keep)
        self._running[session.session_id] = _Running(session, item.call, job, self.clock_ns(), len(job.pending))
        session.running = True

    def _supersede(self, call: Call) -> None:
        """A higher call ends the running one; what that has finished stays cached."""
        old = self._running.get(call.session_id)
        if old is not None and old.call.number < call.number:
            self._finish(old, Refusal(RefusalReason.ENDED, f"call {call.number} came"))

    def _end(self, session_id: bytes, number: int) -> None:
        run = self._running.get(session_id)
        if run is not None and run.call.number == number:
            self._finish(run, Refusal(RefusalReason.ENDED, "cancelled"))

    def _refuse(self, stream: Hashable, call: Call, refusal: Refusal) -> None:
        reply = Reply(call.session_id, call.number, refusal)
        session = self.table.sessions.get(call.session_id)
        if session is not None and session.last_call == call.number:
            session.replies.append(reply)
        self._answers.append((stream, reply))

    def _expire(self) -> None:
        """Ends calls whose time is up: a proposal with what it has, a verify without an answer."""
        now = self.clock_ns()
        for run in [run for run in self._running.values() if run.is_late(now)]:
            self._finish(run, run.job.give_up())

    def _step(self, shares: list[tuple[_Running, int]]) -> None:
        plan, began_s = StepPlan(tuple(run.plan(count) for run, count in shares if count)), self._now()
        try:
            logits = self._forward(plan, [run for run, _ in shares])
        except Exception:
            _log.exception("a forward pass of %d rows failed", plan.num_rows)
            for run, _ in shares:
                self._finish(run, Refusal(RefusalReason.FAULT, "the forward pass failed"))
            return
        for (run, _), rows in zip(shares, logits, strict=True):
            if not run.job.pending:
                self._advance(run, rows)
        answered = [run.session.session_id for run, _ in shares if run.job.done]
        self._gathering.stepped(answered, began_s, self._now())

    def _forward(self, plan: StepPlan, runs: list[_Running]) -> list[torch.Tensor | None]:
        """The logits of each job; None for one that fed nothing."""
        before = self.clock_ns()
        for run in runs:
            self._begin(run, before)
        if not plan.sequences:
            return [None] * len(runs)
        logits = self._model.forward(plan)
        spent = self.clock_ns() - before
        self.work.stepped(plan.num_rows, before, before + spent)
        parts = iter(logits.split([sequence.num_logits for sequence in plan.sequences]))
        sequences = iter(plan.sequences)
        return [self._fed(run, next(sequences), next(parts), spent) if run.job.pending else None for run in runs]

    def _begin(self, run: _Running, now_ns: int) -> None:
        if run.started_ns is None:
            run.started_ns = now_ns
            self.work.began(now_ns - run.received_ns)

    @staticmethod
    def _fed(run: _Running, sequence: SequencePlan, rows: torch.Tensor, spent_ns: int) -> torch.Tensor:
        run.compute_ns += spent_ns
        run.session.cached_len += len(sequence.tokens)
        del run.job.pending[: len(sequence.tokens)]
        return rows

    def _advance(self, run: _Running, rows: torch.Tensor | None) -> None:
        try:
            body: Verdict | Drafted | Refusal = run.job.advance(rows)
        except Exception as error:
            _log.exception("a call failed")
            body = Refusal(RefusalReason.FAULT, str(error))
        if run.job.done or isinstance(body, Refusal):
            self._finish(run, body)
        else:
            run.num_rows = len(run.job.pending)
            self._answer(run, body)

    def _finish(self, run: _Running, body: Verdict | Drafted | Refusal) -> None:
        del self._running[run.session.session_id]
        run.session.running = False
        self.table.publish(run.session)
        self._answer(run, body)

    def _answer(self, run: _Running, body: Verdict | Drafted | Refusal) -> None:
        queue_ns = (run.started_ns or self.clock_ns()) - run.received_ns
        reply = Reply(run.session.session_id, run.call.number, body, queue_ns, run.compute_ns)
        run.session.replies.append(reply)
        self._answers.append((run.session.stream, reply))

    def _now(self) -> float:
        return self.clock_ns() / 1e9
