"""What one call to a worker costs beside the device: asked by a bare caller, one call after another."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median
from time import perf_counter

from tandem.config import RpcConfig
from tandem.core.ledger import Ledger
from tandem.core.stopping import Stopping, StopRules
from tandem.core.types import Block, Call, Description, Drafted, Propose, Rule, Sampling, Verdict, Verify
from tandem.errors import Unavailable
from tandem.rpc.exchange import Exchange
from tandem.rpc.link import Link

_NUM_CALLS, _NUM_WARM_UP = 60, 10
_CONNECT_S = 20.0
_PROMPT = (1, 2, 3, 4)


class _AnyWorker:
    """Lets every worker in: this caller reads none of its tokens."""

    async def why_not(self, link: Link, description: Description) -> str:
        return ""


@contextlib.asynccontextmanager
async def connected(role: str, address: str, rpc: RpcConfig) -> AsyncIterator[Exchange]:
    """A stream of our own to a worker. Raises Unavailable."""
    link = Link(role, address, rpc, _AnyWorker())
    running = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(_CONNECT_S):
            await link.exchange.wait_connected()
        yield link.exchange
    except TimeoutError as error:
        raise Unavailable(f"{role} worker {address}: {link.reason}") from error
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def verify_seconds(exchange: Exchange) -> float:
    """Median time of a verify without a draft, one row."""
    caller = _Caller(exchange)
    return await _median_seconds(caller.verify, caller.release)


async def propose_seconds(exchange: Exchange, num_tokens: int) -> float:
    """Median time of a propose of `num_tokens` tokens."""
    caller = _Caller(exchange)
    return await _median_seconds(lambda: caller.propose(num_tokens), caller.release)


async def _median_seconds(call: Callable[[], Awaitable[None]], release: Callable[[], None]) -> float:
    try:
        return median([await _timed(call) for _ in range(_NUM_CALLS)][_NUM_WARM_UP:])
    finally:
        release()


async def _timed(call: Callable[[], Awaitable[None]]) -> float:
    began_s = perf_counter()
    await call()
    return perf_counter() - began_s


class _Caller:
    """One session that nobody reads."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._ledger = Ledger(_PROMPT, Stopping(StopRules(max_tokens=1 << 20), lambda tokens: ""))
        self._session_id = secrets.token_bytes(16)
        self._number = 0
        self._known = 0

    async def verify(self) -> None:
        order = self._ledger.verify_order(Block(), None)
        prefix = self._ledger.prefix((), self._known)
        self._known = prefix.num_committed
        call = self._exchange.open(Verify(self._next_call(order.round), prefix, order.block, None))
        verdict = (await call.reply()).body
        call.close()
        assert isinstance(verdict, Verdict), verdict
        self._ledger.settle(order.block, verdict)

    async def propose(self, num_tokens: int) -> None:
        prefix = self._ledger.prefix((), self._known)
        self._known = prefix.num_committed
        call = self._exchange.open(Propose(self._next_call(self._number + 1), prefix, num_tokens))
        while not _is_last((await call.reply()).body):
            pass
        call.close()

    def release(self) -> None:
        self._exchange.release(self._session_id)

    def _next_call(self, round_number: int) -> Call:
        self._number += 1
        return Call(
            session_id=self._session_id,
            number=self._number,
            round=round_number,
            rule=Rule.GREEDY,
            max_length=len(_PROMPT) + 2 * _NUM_CALLS,
            seed=0,
            sampling=Sampling(temperature=0.0),
        )


def _is_last(body: object) -> bool:
    assert isinstance(body, Drafted), body
    return body.done
