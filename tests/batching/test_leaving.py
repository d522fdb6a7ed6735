"""Requests that are cancelled at every stage, a thousand times: both workers know within a step, nothing is left.

Here over in-memory carriers in virtual time; test_over_grpc.py does it over sockets. Families D51, D57, I91.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from families.desk import BLOCK_SIZE, Answer, Ask, Desk, at_desk
from families.models import DRAFTS, TARGET, VOCAB

from tandem.core.blocks import BlockPool
from tandem.core.sessions import SessionTable
from tandem.core.types import Propose, Rule, Verify
from tandem.v1 import coordinator_pb2 as pb

NUM_TRIALS = 150  # of each of six stages
WAY_S, STEP_S = 0.0005, 0.001  # of the carriers
NEIGHBOUR = Ask(prompt=tuple((5 * index + 1) % VOCAB for index in range(70)), max_tokens=50, k=0)
RULES_OF_LEAVERS = (Rule.GREEDY, Rule.GREEDY, Rule.GREEDY, Rule.COUPLED, Rule.REJECTION)


class Leaver:
    """A client that reads up to `num_chunks` chunks, then reads no more."""

    def __init__(self, desk: Desk, ask: Ask, num_chunks: int = 10**6) -> None:
        self.desk, self.prompt, self.chunks = desk, ask.prompt, list[pb.GenerateChunk]()
        self.holds = asyncio.Event()
        self._num_chunks = num_chunks
        self.task = asyncio.create_task(self._read(ask.message().SerializeToString()))

    async def _read(self, message: bytes) -> None:
        async for chunk in self.desk.service.generate(message):
            self.chunks.append(chunk)
            if len(self.chunks) >= self._num_chunks or chunk.HasField("finish"):
                self.holds.set()
                await asyncio.Event().wait()

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert self.task.cancelled(), "a cancelled request ended in another way"


@dataclass(frozen=True)
class Stage:
    """Where a request is when it is cancelled."""

    is_reached: Callable[[Desk, Leaver], bool]
    settings: dict[str, Any] = field(default_factory=dict)
    num_blocks: int = 96
    max_step_tokens: int = 512
    prompt_len: int = 5
    num_chunks: Callable[[random.Random], int] = lambda rng: 10**6


def runs(desk: Desk, leaver: Leaver) -> Any:
    """The leaver's call on the target, if one runs."""
    running = desk.target.engine._running.values()
    return next((run for run in running if tuple(run.session.tokens[: len(leaver.prompt)]) == leaver.prompt), None)


def in_prefill(desk: Desk, leaver: Leaver) -> bool:
    run = runs(desk, leaver)
    return run is not None and 0 < run.session.cached_len < 40 and not leaver.chunks


def in_round(desk: Desk, leaver: Leaver) -> bool:
    return len(leaver.chunks) > 1 and runs(desk, leaver) is not None


def holds(desk: Desk, leaver: Leaver) -> bool:
    return leaver.holds.is_set()


STAGES = {
    "queued for a slot": Stage(lambda desk, _: desk.service._admission.num_waiting > 0, {"max_running": 1}),
    "waiting for memory": Stage(lambda desk, _: desk.pool._patience.memory_turn.locked(), num_blocks=33, prompt_len=64),
    "prefill": Stage(in_prefill, max_step_tokens=8, prompt_len=60),
    "mid-round": Stage(in_round),
    "between verify and write": Stage(holds, num_chunks=lambda rng: rng.randrange(1, 5)),
    "last token": Stage(holds),
}


@pytest.fixture(scope="module")
def alone() -> tuple[int, ...]:
    """What the neighbour says when nobody else is there."""

    async def scenario(desk: Desk) -> Answer:
        return await desk.ask(NEIGHBOUR)

    return tuple(at_desk(scenario, TARGET, DRAFTS["near"]).ids)


def leaving(rng: random.Random, stage: Stage) -> Ask:
    prompt = tuple(rng.choices(range(VOCAB), k=stage.prompt_len))
    rule, k = rng.choice(RULES_OF_LEAVERS), rng.choice([0, 1, 4])
    return Ask(prompt=prompt, rule=rule, max_tokens=9, k=k, pipelined=rng.random() < 0.5)


@pytest.mark.parametrize("name", STAGES)
def test_a_request_that_is_cancelled_leaves_nothing_and_disturbs_nobody(name: str, alone: tuple[int, ...]) -> None:
    stage = STAGES[name]

    async def scenario(desk: Desk) -> None:
        rng = random.Random(name)
        desk.target.engine.table = SessionTable(BlockPool(stage.num_blocks, BLOCK_SIZE))
        desk.target.engine._max_step_tokens = stage.max_step_tokens
        num_left = 0
        while num_left < NUM_TRIALS:
            answer = Answer()
            neighbour = asyncio.create_task(desk.ask(NEIGHBOUR, answer))
            await asyncio.sleep(0.003)
            while len(answer.ids) < 34:
                await one_leaves(desk, stage, rng)
                num_left += 1
            await neighbour
            assert tuple(answer.ids) == alone
            await asyncio.sleep(WAY_S + STEP_S + 1e-4)
            assert not any(carrier.engine.table.sessions or carrier.exchange._calls for carrier in desk.carriers)

    at_desk(scenario, TARGET, DRAFTS["near"], **stage.settings)


async def one_leaves(desk: Desk, stage: Stage, rng: random.Random) -> None:
    """Beside the neighbour: reaches the stage, is cancelled, and a step later no worker knows of it."""
    known = [set(carrier.engine.table.sessions) for carrier in desk.carriers]
    leaver = Leaver(desk, leaving(rng, stage), stage.num_chunks(rng))
    while not (stage.is_reached(desk, leaver) or leaver.holds.is_set()):
        assert not leaver.task.done()
        await asyncio.sleep(0.0002)
    await asyncio.sleep(rng.choice([0.0, 0.0001, 0.0004]))
    await leaver.leave()
    await asyncio.sleep(WAY_S + STEP_S + 1e-4)
    for carrier, before in zip(desk.carriers, known, strict=True):
        assert set(carrier.engine.table.sessions) <= before and set(carrier.engine._running) <= before
        carrier.engine.table.check()
    assert not desk.service._admission.num_waiting and not desk.pool._patience.memory_turn.locked()
    assert desk.service._admission.num_running == len(desk.service._ids) <= 1  # the neighbour


def test_one_that_reads_no_more_stalls_only_itself(alone: tuple[int, ...]) -> None:
    """It holds its place, but nothing grows: no call is made for it while nobody takes what is there."""

    async def scenario(desk: Desk) -> None:
        slow = Leaver(desk, Ask(prompt=(1, 2), max_tokens=200, k=4), num_chunks=2)
        await slow.holds.wait()
        await asyncio.sleep(0.1)
        num_items = [len(carrier.items) for carrier in desk.carriers]
        await asyncio.sleep(100.0)
        assert [len(carrier.items) for carrier in desk.carriers] == num_items
        others = await desk.ask_all([NEIGHBOUR] * 4)
        assert all(tuple(answer.ids) == alone for answer in others)
        assert len(slow.chunks) == 2 and not slow.task.done()
        open_calls = [len(carrier.exchange._calls) for carrier in desk.carriers]
        assert open_calls[0] == 0 and open_calls[1] <= 1
        await slow.leave()

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_the_time_that_a_client_takes_to_read_is_no_time_of_a_round() -> None:
    """All requests share what is measured: one slow reader must not make drafts look slow to all."""

    async def scenario(desk: Desk) -> None:
        ask = Ask(k=4, max_tokens=60).message()
        ask.ClearField("speculation")
        async for _ in desk.service.generate(ask.SerializeToString()):
            await asyncio.sleep(1.0)
        lines = desk.service._batch.load().lines
        assert lines["plain"].count > 2
        assert lines["plain"].at(2) < 0.1
        assert max(line.at(2) for line in lines.values()) < 10  # in plain rounds

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_the_load_that_a_pace_is_chosen_for_is_the_present_one() -> None:
    """Requests that have ended count no more."""

    async def scenario(desk: Desk) -> None:
        def unasked(max_tokens: int) -> bytes:
            message = Ask(prompt=(max_tokens % VOCAB, 2), max_tokens=max_tokens).message()
            message.ClearField("speculation")
            return message.SerializeToString()

        async def run(max_tokens: int) -> None:
            async for _ in desk.service.generate(unasked(max_tokens)):
                pass

        long = asyncio.create_task(run(120))
        await asyncio.sleep(0.001)
        await asyncio.gather(*(run(5 + index) for index in range(9)))
        await asyncio.sleep(0.02)
        assert not long.done() and desk.service._admission.num_running == 1
        assert desk.service._batch.num_running == 1
        await long

    at_desk(scenario, TARGET, DRAFTS["near"])


def test_a_request_whose_client_is_gone_before_it_begins_makes_no_model_call() -> None:
    """In the queue for a slot: neither worker hears of it."""

    async def scenario(desk: Desk) -> None:
        neighbour = asyncio.create_task(desk.ask(NEIGHBOUR))
        await asyncio.sleep(0.003)
        waiting = [Leaver(desk, Ask(prompt=(9, 9, index))) for index in range(5)]
        await asyncio.sleep(0.003)
        for leaver in waiting:
            await leaver.leave()
        await neighbour
        calls = [item for carrier in desk.carriers for item in carrier.items if isinstance(item, Verify | Propose)]
        assert len({item.call.session_id for item in calls}) == 1

    at_desk(scenario, TARGET, DRAFTS["near"], max_running=1)


def test_cancelling_twice_or_after_the_end_is_harmless() -> None:
    async def scenario(desk: Desk) -> None:
        leaver = Leaver(desk, Ask())
        await leaver.holds.wait()
        await leaver.leave()
        leaver.task.cancel()
        assert (await desk.ask(NEIGHBOUR)).ids

    at_desk(scenario, TARGET, DRAFTS["near"])
