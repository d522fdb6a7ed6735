"""20,000 mutated Generate messages: each ends once, with a status of ours, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

import grpc
import pytest
from families.desk import Ask, Desk, at_desk
from families.models import DRAFTS, TARGET
from families.plain import plain

from coordinator.door import Door
from door.context import FakeContext, answer_of
from door.house import House, good, is_good
from door.mutation import mutate
from tandem.core.types import Rule
from tandem.v1 import coordinator_pb2 as pb

Code = grpc.StatusCode
LAWFUL = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.ALREADY_EXISTS,
    Code.FAILED_PRECONDITION,
    Code.RESOURCE_EXHAUSTED,
    Code.UNIMPLEMENTED,
}
NUM_DIRECT, NUM_OVER_THE_WIRE, NUM_AT_ONCE = 19_000, 1_000, 20
CONTEXT = 12  # so that whatever is asked for is soon said


def seeds_of_requests(model: str, prompt: tuple[int, ...]) -> list[pb.GenerateRequest]:
    """Valid requests that between them use every field."""
    named = Ask(prompt=prompt, max_tokens=2, fields={"model": model, "request_id": "fuzz"})
    plain_ask = replace(named, fields={"model": model, "cache_salt": "salt"})
    rich = replace(plain_ask, rule=Rule.COUPLED, stops=("ab", "c"), ends=(4, 5), min_tokens=1, prior=(2,), k=2)
    sampling = {
        "top_p": 0.9,
        "top_k": 9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "logit_bias": {3: 1.0, 4: -1.0},
        "logprobs": 2,
    }
    asks = [plain_ask, rich, replace(rich, sampling=sampling), replace(rich, rule=Rule.REJECTION, sampling=sampling)]
    messages = [ask.message() for ask in asks]
    text, chat = plain_ask.message(), plain_ask.message()
    text.text = "abc"
    chat.chat.messages.extend([pb.Message(role="user", content="hi"), pb.Message(role="system", content="a")])
    return [named.message(), *messages, *messages, text, chat]


async def _fuzz(door: Door, messages: list[bytes]) -> Counter[grpc.StatusCode]:
    """A few at a time; every answer is whole or ends in a status."""
    codes: Counter[grpc.StatusCode] = Counter()
    todo = iter(messages)

    async def client() -> None:
        for message in todo:
            context = FakeContext()
            chunks = await answer_of(door, message, context)
            codes[context.code] += 1
            assert context.code in LAWFUL, (context.code, context.details, message)
            assert context.code is not Code.OK or chunks[-1].HasField("finish")

    await asyncio.gather(*(client() for _ in range(NUM_AT_ONCE)))
    return codes


def test_mutated_requests_at_the_door() -> None:
    """Any bytes: no UNKNOWN, no INTERNAL; then a good request says what it always says."""
    draw = random.Random(2024)
    valid = seeds_of_requests("scripted", (1, 2, 3))
    messages = [mutate(draw.choice(valid), draw) for _ in range(NUM_DIRECT)]

    async def scenario(desk: Desk) -> Counter[grpc.StatusCode]:
        door = Door()
        door.service = desk.service
        codes = await _fuzz(door, messages)
        assert (await desk.ask(ask)).ids == plain(TARGET, ask)
        return codes

    ask = Ask(rule=Rule.COUPLED, max_tokens=8)
    codes = at_desk(scenario, TARGET, DRAFTS["near"], context=CONTEXT)
    assert sum(codes.values()) == NUM_DIRECT
    assert min(codes[code] for code in (Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS)) > 100


@pytest.mark.asyncio(loop_scope="module")
async def test_mutated_requests_over_the_wire(house: House) -> None:
    """The same through gRPC, among good requests that stay what they are."""
    draw = random.Random(7)
    valid = seeds_of_requests("target", (1, 2, 3) * 80)
    todo = iter([mutate(draw.choice(valid), draw) for _ in range(NUM_OVER_THE_WIRE)])

    async def client() -> None:
        for message in todo:
            outcome = await house.ask(message)
            assert outcome.code in LAWFUL, (outcome.code, outcome.details, message)

    clients = [asyncio.create_task(client()) for _ in range(NUM_AT_ONCE)]
    goods = [await house.ask(good()) for _ in range(5)]
    await asyncio.gather(*clients)
    assert all(map(is_good, [*goods, await house.ask(good())]))
    await house.assert_well()
