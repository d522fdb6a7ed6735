"""20,000 mutated messages between services: each item is answered or refused, no stream but its own feels it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from families.desk import BLOCK_SIZE, KS, NUM_BLOCKS, RULES, Ask, Desk, at_desk
from families.models import DRAFTS, TARGET, VOCAB
from families.oracle import check_counts
from families.plain import plain
from google.protobuf.message import DecodeError
from harness import scripted
from harness.scripted import ScriptedModel

from coordinator.door import Door
from door.context import FakeContext, answer_of
from door.house import House, good, is_good
from door.mutation import mutate
from tandem.core.types import Cancel, Item, Propose, Refusal, Rule, Verify
from tandem.model.engine import Engine
from tandem.rpc.codec import DraftCodec, TargetCodec
from tandem.v1 import draft_pb2, target_pb2

NUM_MESSAGES, NUM_OVER_THE_WIRE = 20_000, 400
ROLES: dict[str, tuple[Any, Any, str]] = {
    "target": (TargetCodec, target_pb2.VerifyRequest, "/tandem.v1.Target/Verify"),
    "draft": (DraftCodec, draft_pb2.ProposeRequest, "/tandem.v1.Draft/Propose"),
}


@pytest.fixture(scope="module")
def traffic() -> dict[str, list[Any]]:
    """Valid messages to each kind of worker."""
    return {role: recorded(role) for role in ROLES}


def recorded(role: str) -> list[Any]:
    """The messages of real traffic under every rule, one item each."""
    sampling = {"top_p": 0.95, "logit_bias": {3: 1.0}, "logprobs": 1, "frequency_penalty": 0.1}

    async def scenario(desk: Desk) -> list[Item]:
        asks = [Ask(rule=rule, k=k, max_tokens=8, min_tokens=2, ends=(5,)) for rule in RULES for k in KS]
        await desk.ask_all(asks)
        await desk.ask_all([replace(ask, pipelined=False, sampling={"temperature": 0.7, **sampling}) for ask in asks])
        await asyncio.sleep(1.0)
        return list((desk.target if role == "target" else desk.draft).items)  # type: ignore[union-attr]

    codec, _, _ = ROLES[role]
    items = at_desk(scenario, TARGET, DRAFTS["near"])
    calls = [item.call for item in items[::7] if isinstance(item, Verify | Propose)]
    cancels = [Cancel(call.session_id, call.number) for call in calls]
    return [codec.request([item]) for item in [*items[: len(items) // 2], *cancels, *items[len(items) // 2 :]]]


def renamed(message: Any, number: int) -> Any:
    """The same of other sessions: those that were released stay refused."""
    copy = type(message)()
    copy.CopyFrom(message)
    for item in copy.items:
        body = getattr(item, item.WhichOneof("item"))
        named = body.call if body.DESCRIPTOR.name in ("Verify", "Propose") else body
        named.session_id = number.to_bytes(4, "big") + named.session_id[4:]
    return copy


def mutants(messages: Sequence[Any], num: int, draw: random.Random) -> Iterable[bytes]:
    """Traffic in its own order, again and again; much of it mutated, some messages joined to one."""
    for index in range(num):
        message = renamed(messages[index % len(messages)], index // len(messages))
        if draw.random() < 0.4:
            yield message.SerializeToString()
            continue
        if draw.random() < 0.2:
            joined = type(message)()
            joined.CopyFrom(message)
            joined.items.extend(draw.choice(messages).items)
            message = joined
        yield mutate(message, draw)


def new_engine(role: str) -> Engine:
    make = scripted.target_engine if role == "target" else scripted.draft_engine
    model = ScriptedModel(TARGET, NUM_BLOCKS, BLOCK_SIZE)
    return make(model, VOCAB, time.monotonic_ns, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)


def receive(engine: Engine, role: str, stream: object, message: bytes) -> None:
    """As a stream does it; bytes that are no message never get this far."""
    codec, kind, _ = ROLES[role]
    try:
        parsed = kind.FromString(message)
    except DecodeError:
        return
    engine.receive(stream, codec.items(parsed))


def run_dry(engine: Engine, codec: Any) -> None:
    """Steps until nothing is left to do; every answer can be sent."""
    for _ in range(200):
        if not engine.busy:
            return
        codec.response([reply for _, reply in engine.step()])
    raise AssertionError("the engine never comes to rest")


@pytest.mark.parametrize("role", ROLES)
def test_mutated_messages_in_an_engine(traffic: dict[str, list[Any]], role: str) -> None:
    """Nothing raises, memory adds up after every message, and nothing stays when the stream is gone."""
    draw, engine, codec = random.Random(role), new_engine(role), ROLES[role][0]
    stream, bodies = object(), Counter[str]()
    for index, message in enumerate(mutants(traffic[role], NUM_MESSAGES // 2, draw)):
        receive(engine, role, stream, message)
        if index % 3 == 0:
            replies = [reply for _, reply in engine.step()]
            bodies.update(_kind(reply.body) for reply in replies)
            codec.response(replies)
        if index % 20 == 0:
            engine.table.check()
        if index % 200 == 0:
            engine.close_stream(stream)
            stream = object()
    run_dry(engine, codec)
    engine.close_stream(stream)
    engine.table.expire(1e12)
    engine.table.check()
    assert not engine.table.sessions and not engine.table.pool.num_used and not engine.busy
    usual = {"Verdict" if role == "target" else "Drafted", "MISSING", "STALE", "RELEASED", "INVALID"}
    assert min(bodies[kind] for kind in usual) > 5, bodies


def _kind(body: Any) -> str:
    return body.reason.name if isinstance(body, Refusal) else type(body).__name__


async def _talk(house: House, role: str, messages: Iterable[bytes]) -> list[grpc.StatusCode]:
    """Sends each message on the stream that is up, a new one where the last was ended; the codes of those ended."""
    codes = []
    for message in messages:
        async with grpc.aio.insecure_channel(getattr(house, role).address) as channel:
            call = channel.stream_stream(ROLES[role][2], None, None)(timeout=10.0)
            await call.write(message)
            await call.done_writing()
            reader = asyncio.create_task(_read_all(call))
            codes.append(await call.code())
            await reader
    return codes


async def _read_all(call: Any) -> None:
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError:
        pass


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("role", ROLES)
async def test_mutated_messages_on_streams(traffic: dict[str, list[Any]], house: House, role: str) -> None:
    """Over gRPC: never UNKNOWN; a coordinator's own stream beside them goes on, and so do its requests."""
    draw = random.Random(f"wire {role}")
    messages = list(mutants(traffic[role], NUM_OVER_THE_WIRE // 2, draw))
    talking = [asyncio.create_task(_talk(house, role, messages[part::4])) for part in range(4)]
    goods = [await house.ask(good()) for _ in range(4)]
    codes = [code for codes in await asyncio.gather(*talking) for code in codes]
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}
    assert all(map(is_good, [*goods, await house.ask(good())]))
    assert house.door.service._pool.targets.open  # type: ignore[union-attr]
    await _forget_orphans(house, role)
    await house.assert_well()


async def _forget_orphans(house: House, role: str) -> None:
    """Has the lease of sessions run out that an ended stream left; on the device thread, as all that touches them."""
    worker, done = getattr(house, role), asyncio.Event()
    loop = asyncio.get_running_loop()

    def expire(engine: Engine) -> None:
        engine.table.expire(1e12)
        loop.call_soon_threadsafe(done.set)

    worker._device._events.put(expire)
    await asyncio.wait_for(done.wait(), 10.0)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("method", ["Worker/Describe", "Worker/Vocabulary", "Draft/Propose", "Target/Verify"])
async def test_garbage_to_a_worker(house: House, method: str) -> None:
    """Bytes that are no message: not UNKNOWN from any method."""
    worker = house.draft if method.startswith("Draft") else house.target
    async with grpc.aio.insecure_channel(worker.address) as channel:
        for garbage in (b"\xff\xff\xff", b"\x0a\x05a"):
            call = channel.stream_stream(f"/tandem.v1.{method}", None, None)(timeout=5.0)
            await call.write(garbage)
            await call.done_writing()
            await _read_all(call)
            assert await call.code() is not grpc.StatusCode.UNKNOWN
    await house.assert_well()


@pytest.mark.parametrize("rule", [Rule.GREEDY, Rule.COUPLED, Rule.REJECTION])
def test_mutated_replies_of_a_draft(rule: Rule) -> None:
    """What a draft worker answers is never trusted: mutated, it costs drafts, no request and no token."""
    draw = random.Random(rule.name)

    def tamper(reply: Any) -> list[Any]:
        message = draft_pb2.ProposeResponse.FromString(mutate(DraftCodec.response([reply]), draw) or b"")
        replies = DraftCodec.replies(message)
        return [replace(changed, session_id=reply.session_id, number=reply.number) for changed in replies]

    def forgiving(reply: Any) -> list[Any]:
        try:
            return tamper(reply)
        except DecodeError:
            return []

    async def scenario(desk: Desk) -> None:
        for seed in range(60):
            ask = Ask(rule=rule, seed=seed, k=1 + seed % 5, pipelined=seed % 2 == 0, max_tokens=10)
            answer = await desk.ask(ask)
            assert rule is Rule.REJECTION or answer.ids == plain(TARGET, ask)

    at_desk(scenario, TARGET, TARGET, tamper=forgiving, draft_retry_s=0.001)


def test_mutated_replies_of_a_target() -> None:
    """A target worker is trusted with the text alone: each request ends, and its counts are counts."""
    draw = random.Random("target")

    def tamper(reply: Any) -> list[Any]:
        if draw.random() < 0.7:
            return [reply]
        try:
            message = target_pb2.VerifyResponse.FromString(mutate(TargetCodec.response([reply]), draw))
        except DecodeError:
            return [reply]
        replies = TargetCodec.replies(message) or [reply]
        return [replace(changed, session_id=reply.session_id, number=reply.number) for changed in replies]

    async def scenario(desk: Desk) -> None:
        door, codes = Door(), Counter[grpc.StatusCode]()
        door.service, desk.target.tamper = desk.service, tamper
        for seed in range(150):
            ask = Ask(rule=RULES[seed % 3], seed=seed, pipelined=seed % 2 == 0, max_tokens=6)
            context = FakeContext()
            chunks = await answer_of(door, ask.message().SerializeToString(), context)
            codes[context.code] += 1
            if context.code is grpc.StatusCode.OK:
                check_counts(chunks)
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.INTERNAL}, codes
        assert min(codes.values()) > 10
        desk.target.tamper = None
        assert (await desk.ask(Ask())).ids == plain(TARGET, Ask())

    at_desk(scenario, TARGET, DRAFTS["near"], memory_wait_s=1.0)


def test_traffic_uses_every_kind_of_item(traffic: dict[str, list[Any]]) -> None:
    """What is mutated has it all: calls, cancels, releases, q."""
    items = [item for messages in traffic.values() for message in messages for item in message.items]
    kinds = {item.WhichOneof("item") for item in items}
    assert kinds == {"verify", "propose", "cancel", "release"}
    assert any(len(item.verify.block.q) for item in items if item.WhichOneof("item") == "verify")
