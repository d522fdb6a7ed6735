"""The sessions of one request on the workers: each call's number, its prefix, and what to do when it is refused.

Nothing here decides a token. A call that is refused for missing tokens is stated again from where the worker says it
stands; a worker that lost everything, or another worker, is a worker that has 0 tokens.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace

from coordinator.patience import Patience
from coordinator.replicas import Replica, Replicas
from tandem.core.ledger import DraftOrder, Ledger, VerifyOrder
from tandem.core.types import Block, Call, Drafted, Prefix, Propose, Refusal, RefusalReason, Verdict, Verify
from tandem.errors import CallRefused, GenerationFault, Unavailable, WorkerLost
from tandem.rpc.exchange import OpenCall

_MAX_PREEMPTED = 3


class Session:
    """One generation on one worker of a pool, seen from here. It stays there as long as it can."""

    def __init__(self, replicas: Replicas, call: Call, ledger: Ledger) -> None:
        self.known = 0  # committed tokens that the worker has been told, unless it refuses
        self._replicas = replicas
        self._replica: Replica | None = None  # chosen with the first call
        self._call = call
        self._ledger = ledger
        self._number = 0
        self._tie = secrets.randbits(32)

    def release(self) -> None:
        """Ends the session on the worker, if it was ever called."""
        if self._replica is not None and self._number:
            self._replica.exchange.release(self._call.session_id)

    def _move_to(self, replica: Replica) -> None:
        """Another worker is told all of the session, under a new id: should it come back, the old one is refused."""
        if self._replica is not None:
            self.release()
            self._call = replace(self._call, session_id=secrets.token_bytes(16))
        self._replica, self._number, self.known = replica, 0, 0

    def _next_call(self, round_number: int) -> Call:
        self._number += 1
        return replace(self._call, number=self._number, round=round_number)

    def _state_prefix(self, speculated: tuple[int, ...]) -> Prefix:
        """Committed tokens never change, so those told once are not sent again."""
        prefix = self._ledger.prefix(speculated, min(self.known, len(self._ledger.tokens)))
        self.known = prefix.num_committed
        return prefix


class TargetSession(Session):
    """verify, with what it takes to get an answer."""

    def __init__(
        self, replicas: Replicas, call: Call, ledger: Ledger, patience: Patience, fingerprint: str = ""
    ) -> None:
        """`fingerprint`: of the model that the text is of; no worker with another one is called."""
        super().__init__(replicas, call, ledger)
        self.num_reused = 0  # prompt tokens that were found in the target's cache at first
        self._fingerprint = fingerprint
        self._patience = patience
        self._refused: Replica | None = None  # had no memory for it
        self._num_set_back = 0  # times that what the worker had computed of it was gone

    async def verify(self, order: VerifyOrder) -> tuple[Block, Verdict]:
        """The verdict, and the block it is about: empty if the worker found the draft malformed.

        A worker that drains, is lost or has no memory is left for another one, where there is one.

        Raises Unavailable when no target worker is there in time, Overloaded when none has memory in time,
        GenerationFault when it cannot answer.
        """
        block, resent = order.block, False
        async with self._patience.start() as waiting:
            if not self._number:
                await waiting.in_line()
            while True:
                try:
                    return block, await self._verify_once(order, block)
                except WorkerLost as error:
                    self.known = 0
                    await waiting.for_worker(error, self._replicas.until(self._place))
                except CallRefused as error:
                    match error.refusal.reason:
                        case RefusalReason.INVALID if block.tokens:
                            block = Block()
                        case RefusalReason.MISSING if not resent:
                            resent, self.known = True, error.refusal.have
                            self._set_back(error.refusal.have == 0)
                        case RefusalReason.FULL | RefusalReason.PREEMPTED as reason:
                            self.known, self._refused = 0, self._replica
                            self._set_back(reason is RefusalReason.PREEMPTED)
                            await waiting.for_memory()
                        case reason:
                            self._blame(reason)
                            raise GenerationFault(f"target worker: {error}") from error

    def _place(self) -> Replica | None:
        """The worker to call, if there is one."""
        replica = self._replicas.place(self._tie, self._replica, self._refused, self._fingerprint)
        if replica is not None and replica is not self._replica:
            self._move_to(replica)
        return replica

    def _set_back(self, is_gone: bool) -> None:
        """One that is preempted too often comes back only with memory for all of it. Between two calls nobody is told
        of a preemption: the next call then finds nothing.
        """
        self._num_set_back += is_gone
        if self._num_set_back >= _MAX_PREEMPTED:
            self._call = replace(self._call, reserve_whole=True)

    def _blame(self, reason: RefusalReason) -> None:
        if reason is RefusalReason.FAULT and self._replica is not None:
            self._replica.failed()

    async def _verify_once(self, order: VerifyOrder, block: Block) -> Verdict:
        replica = self._place()
        if replica is None:
            raise WorkerLost("not connected")
        replica.trying()
        body = await self._answer(replica, order, block)
        if isinstance(body, Refusal):
            raise CallRefused(body)
        assert isinstance(body, Verdict)
        if body.num_accepted > len(block.tokens):
            raise GenerationFault(f"target worker: {body.num_accepted} of {len(block.tokens)} draft tokens accepted")
        if not self._ledger.statistics.num_verifies:  # a later session of ours may find our own remains
            self.num_reused = body.num_reused
        self._refused = None
        replica.succeeded()
        return body

    async def _answer(self, replica: Replica, order: VerifyOrder, block: Block) -> Verdict | Refusal | Drafted:
        prefix = self._state_prefix(())
        call = replica.exchange.open(Verify(self._next_call(order.round), prefix, block, order.ahead_round))
        try:
            async with asyncio.timeout(self._patience.answer_s):
                return (await call.reply()).body
        except TimeoutError as error:
            replica.failed()
            raise Unavailable("the target worker does not answer") from error
        finally:
            call.close()


class DraftSession(Session):
    """propose. Every proposal goes to a worker that is there and answers, if there is one."""

    def __init__(self, replicas: Replicas, call: Call, ledger: Ledger, wait_s: float) -> None:
        super().__init__(replicas, call, ledger)
        self.wait_s = wait_s
        self._last: OpenCall | None = None  # all before it are closed

    def release(self) -> None:
        """Also closes the proposal that nobody waits for any more, because the output has ended."""
        if self._last is not None:
            self._last.close()
        super().release()

    def why_not(self) -> str:
        """Why no proposal is worth trying now; empty if one is."""
        replica = self._choice()
        if replica is None:
            return "unavailable"
        return "" if replica.allows() else "paused"

    def start(self, order: DraftOrder) -> Proposal:
        """Sends the call and returns at once."""
        replica = self._choice() or self._replica
        assert replica is not None, "start only where why_not() is empty"
        if replica is not self._replica:
            self._move_to(replica)
        replica.trying()
        return Proposal(self, replica, order)

    def send(self, order: DraftOrder) -> OpenCall:
        """Opens one propose call."""
        assert self._replica is not None
        prefix = self._state_prefix(order.speculated)
        self._last = self._replica.exchange.open(Propose(self._next_call(order.round), prefix, order.num_tokens))
        return self._last

    def give_up(self) -> None:
        """Ends the running call on the worker."""
        if self._replica is not None:
            self._replica.exchange.cancel(self._call.session_id, self._number)

    def failed(self) -> None:
        """Counts against the worker."""
        if self._replica is not None:
            self._replica.failed()

    def succeeded(self) -> None:
        """Counts for the worker."""
        if self._replica is not None:
            self._replica.succeeded()

    def _choice(self) -> Replica | None:
        return self._replicas.place(self._tie, self._replica)


class Proposal:
    """A block on its way. `cause` says why fewer tokens came than were asked for."""

    def __init__(self, session: DraftSession, replica: Replica, order: DraftOrder) -> None:
        """`session` is on `replica` now."""
        self.order = order
        self.drafted = Drafted(())
        self.cause = ""
        self._session = session
        self._replica = replica
        self._call = session.send(order)
        self._resent = False
        self._deadline: float | None = None  # runs from the moment that somebody waits

    async def first(self) -> int | None:
        """The first token; None if none comes in time."""
        await self._receive_until(lambda: bool(self.drafted.tokens))
        return self.drafted.tokens[0] if self.drafted.tokens else None

    async def whole(self) -> Drafted:
        """The block, or the prefix of it that came in time."""
        await self._receive_until(lambda: False)
        return self.drafted

    def num_arrived(self) -> int:
        """Tokens that have come, looked at or not."""
        for reply in self._call.arrived():
            if isinstance(reply.body, Drafted):
                self._take(reply.body)
        return len(self.drafted.tokens)

    def close(self) -> None:
        """No more is wanted of it; a higher call or the release ends it on the worker."""
        self._call.close()

    async def _receive_until(self, enough: Callable[[], bool]) -> None:
        self._deadline = self._deadline or asyncio.get_running_loop().time() + self._session.wait_s
        try:
            async with asyncio.timeout_at(self._deadline):
                while not (self.drafted.done or self.cause or enough()):
                    self._take((await self._call.reply()).body)
        except TimeoutError:
            self._session.give_up()
            self._fail("timeout")
        except WorkerLost:
            self._session.known = 0
            self._fail("lost")

    def _take(self, body: Drafted | Refusal | Verdict) -> None:
        if isinstance(body, Drafted):
            if body.offset != len(self.drafted.tokens):
                return  # said before
            tokens, q = self.drafted.tokens + body.tokens, self.drafted.q + body.q
            self.drafted = Drafted(tokens, q, body.drafter, body.done)
            if body.done and not tokens:
                self._replica.succeeded()  # it has nothing, and says so in time
        elif isinstance(body, Refusal):
            self._refused(body)

    def _refused(self, refusal: Refusal) -> None:
        if refusal.reason is RefusalReason.MISSING and not self._resent:
            self._resent, self._session.known = True, refusal.have
            self._call.close()
            self._call = self._session.send(self.order)
        else:
            self.cause = f"refused_{refusal.reason.name.lower()}"  # about this request; says nothing of the worker

    def _fail(self, cause: str) -> None:
        self.cause = cause
        self._replica.failed()
