"""In-memory carriers between a coordinator's Exchange and a worker's Engine, in one event loop.

Items and replies pass through the real codec. A Misbehaviour says how badly the way is travelled; a tamper says what a
worker answers instead of the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tandem.core.types import Drafted, Item, Refusal, RefusalReason, Reply, Verdict
from tandem.model.engine import Engine
from tandem.rpc.codec import DraftCodec, TargetCodec
from tandem.rpc.exchange import Exchange

Tamper = Callable[[Reply], Sequence[Reply]]


@dataclass(frozen=True)
class Misbehaviour:
    """Chances in [0, 1], times in seconds. The default is a perfect network."""

    delay_s: tuple[float, float] = (0.0005, 0.0005)  # shortest and longest, each way
    in_order: bool = True  # else every item and every reply takes a way of its own
    duplicated: float = 0.0  # an item arrives twice
    lost_replies: float = 0.0  # the reply is gone; a stream that loses one breaks a little later
    breaks: float = 0.0  # the stream breaks behind an item
    restarts: float = 0.0  # a broken stream finds a new, empty worker
    evictions: float = 0.0  # an idle session is dropped before a step
    reconnect_s: float = 0.02


PROMPT = Misbehaviour()
DELAYING = Misbehaviour(delay_s=(0.0, 0.05))
REORDERING = Misbehaviour(delay_s=(0.0, 0.03), in_order=False)
DUPLICATING = Misbehaviour(delay_s=(0.0, 0.02), in_order=False, duplicated=0.4)
BREAKING = Misbehaviour(delay_s=(0.0, 0.01), breaks=0.08)
RESTARTING = Misbehaviour(delay_s=(0.0, 0.01), breaks=0.08, restarts=1.0)
LOSING_REPLIES = Misbehaviour(delay_s=(0.0, 0.01), lost_replies=0.08)
EVICTING = Misbehaviour(delay_s=(0.0, 0.01), evictions=0.3)
AWFUL = Misbehaviour((0.0, 0.03), False, 0.2, 0.04, 0.04, 0.5, 0.1)

NETWORKS = {
    "delaying": DELAYING,
    "reordering": REORDERING,
    "duplicating": DUPLICATING,
    "breaking": BREAKING,
    "restarting": RESTARTING,
    "losing replies": LOSING_REPLIES,
    "evicting": EVICTING,
    "awful": AWFUL,
}


class Carrier:
    """A worker and the way to it."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        codec: Any,
        network: Misbehaviour = PROMPT,
        *,
        step_s: float = 0.001,
        seed: int = 0,
        tamper: Tamper | None = None,
    ) -> None:
        """`make_engine` is called again for every worker that is started anew. A step takes `step_s`."""
        self.exchange = Exchange()
        self.engine = make_engine()
        self.network = network
        self.step_s = step_s
        self.tamper = tamper
        self.num_breaks = 0
        self.num_evictions = 0
        self.steps: list[tuple[float, float]] = []  # begin and end of each
        self.items: list[Item] = []  # that reached the worker
        self.refusals: Counter[RefusalReason] = Counter()  # that it answered
        self._make_engine = make_engine
        self._codec = codec
        self._random = random.Random(seed)
        self._stream: object | None = None
        self._inbox: list[tuple[object, list[Item]]] = []
        self._arrived = asyncio.Event()
        self._ways = [0.0, 0.0]  # when the last thing that must stay in order arrives, there and back

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Carrier]:
        """Connected while entered."""
        self.connect()
        tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._work())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    def connect(self) -> None:
        if self._stream is None:
            self._stream = object()
            self.exchange.connect()

    def break_stream(self, restart: bool = False, comes_back: bool = True) -> None:
        """What is under way is lost; the worker keeps its sessions unless it starts anew."""
        if self._stream is None:
            return
        self.num_breaks += 1
        self.engine.close_stream(self._stream)
        self._stream = None
        self._inbox.clear()
        if restart:
            self.engine = self._make_engine()
        self.exchange.lose("the carrier broke")
        if comes_back:
            asyncio.get_running_loop().call_later(self.network.reconnect_s, self.connect)

    async def _send(self) -> None:
        while True:
            items = self._codec.items(self._codec.request(await self.exchange.outgoing()))
            for parcel in self._parcels(items):
                self._carry(0, self._stream, lambda stream, parcel=parcel: self._arrive(stream, parcel))

    def _parcels(self, items: list[Item]) -> Iterable[list[Item]]:
        copies = [item for item in items for _ in range(1 + self._happens(self.network.duplicated))]
        return [copies] if self.network.in_order else [[item] for item in copies]

    def _arrive(self, stream: object, items: list[Item]) -> None:
        self.items += items
        self._inbox.append((stream, items))
        self._arrived.set()
        if any([self._happens(self.network.breaks) for _ in items]):
            self.break_stream(self._happens(self.network.restarts))

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._inbox or self.engine.busy:
                await self._step()

    async def _step(self) -> None:
        engine, loop = self.engine, asyncio.get_running_loop()
        self._evict()
        inbox, self._inbox = self._inbox, []
        for stream, items in inbox:
            engine.receive(stream, items)
        answers = engine.step()
        if len(self.steps) % 8 == 0:
            engine.table.check()
        begun = loop.time()
        await asyncio.sleep(self.step_s)
        self.steps.append((begun, loop.time()))
        for stream in {stream for stream, _ in answers}:
            self._reply(stream, [reply for to, reply in answers if to is stream])

    def _reply(self, stream: object, replies: list[Reply]) -> None:
        self.refusals.update(reply.body.reason for reply in replies if isinstance(reply.body, Refusal))
        if self.tamper is not None:
            replies = [tampered for reply in replies for tampered in self.tamper(reply)]
        for parcel in [replies] if self.network.in_order else [[reply] for reply in replies]:
            if self._happens(self.network.lost_replies):
                self._carry(1, stream, lambda _: self.break_stream(self._happens(self.network.restarts)))
            else:
                self._carry(1, stream, lambda _, parcel=parcel: self._deliver(parcel))

    def _deliver(self, replies: list[Reply]) -> None:
        self.exchange.receive(self._codec.replies(self._codec.response(replies)))

    def _carry(self, way: int, stream: object, arrive: Callable[[object], None]) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._random.uniform(*self.network.delay_s)
        if self.network.in_order:
            due = self._ways[way] = max(due, self._ways[way] + 1e-6)

        def arrived() -> None:
            if stream is self._stream:
                arrive(stream)

        loop.call_at(due, arrived)

    def _evict(self) -> None:
        idle = [key for key, session in self.engine.table.sessions.items() if not session.running]
        if idle and self._happens(self.network.evictions):
            self.num_evictions += 1
            self.engine.table.drop(self._random.choice(idle))

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._random.random() < chance


class DraftCarrier(Carrier):
    def __init__(self, make_engine: Callable[[], Engine], network: Misbehaviour = PROMPT, **options: Any) -> None:
        super().__init__(make_engine, DraftCodec, network, **options)


class TargetCarrier(Carrier):
    def __init__(self, make_engine: Callable[[], Engine], network: Misbehaviour = PROMPT, **options: Any) -> None:
        super().__init__(make_engine, TargetCodec, network, **options)


class DeadDraft(DraftCarrier):
    """Was never there."""

    def connect(self) -> None:
        pass


def silent(reply: Reply) -> Sequence[Reply]:
    """Never answers."""
    return ()


def empty_handed(reply: Reply) -> Sequence[Reply]:
    """Answers at once that it has nothing."""
    return (replace(reply, body=Drafted((), done=True)),)


def in_a_foreign_name(reply: Reply) -> Sequence[Reply]:
    """Answers under the id of a session that nobody has."""
    return (replace(reply, session_id=b"x" * 16),)


def talkative(reply: Reply) -> Sequence[Reply]:
    """Proposes a hundred tokens more than it was asked for."""
    return _with_tokens(reply, lambda tokens: tokens + (tokens[-1:] or (0,)) * 100)


def out_of_range(token: int) -> Tamper:
    """Proposes ids that no vocabulary has."""
    return lambda reply: _with_tokens(reply, lambda tokens: (token,) * len(tokens))


def shifted(vocab_size: int) -> Tamper:
    """Proposes legal ids, all of them wrong whenever its model is right."""
    return lambda reply: _with_tokens(reply, lambda tokens: tuple((token + 1) % vocab_size for token in tokens))


class Script:
    """Right for the first `right[i]` tokens of its i-th proposal, then wrong; the list is gone through in circles."""

    def __init__(self, vocab_size: int, right: Sequence[int]) -> None:
        self._vocab_size = vocab_size
        self._right = right
        self._calls: dict[tuple[bytes, int], int] = {}  # call -> its place in the order of proposals
        self._num_sent: dict[tuple[bytes, int], int] = {}

    def __call__(self, reply: Reply) -> Sequence[Reply]:
        key = (reply.session_id, reply.number)
        right = self._right[self._calls.setdefault(key, len(self._calls)) % len(self._right)]
        sent = self._num_sent.get(key, 0)
        self._num_sent[key] = sent + (len(reply.body.tokens) if isinstance(reply.body, Drafted) else 0)
        return _with_tokens(
            reply,
            lambda tokens: tuple(
                token if sent + index < right else (token + 1) % self._vocab_size for index, token in enumerate(tokens)
            ),
        )


def _with_tokens(reply: Reply, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Sequence[Reply]:
    body = reply.body
    assert not isinstance(body, Verdict)
    return (replace(reply, body=replace(body, tokens=change(body.tokens))) if isinstance(body, Drafted) else reply,)
