"""The table of bad inputs: the status of each row, and that it harms nobody.

Rows 21 (keys) and 24's draining are not built; of row 23 there are no quotas.
"""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest
from harness.tiny import CONTEXT_LENGTH, reference, tiny_folder
from harness.waiting import assert_eventually

from door.context import FakeContext, answer_of
from door.house import GENERATE, GOOD_LENGTH, GOOD_PROMPT, SERVING, House, good, is_good, open_house
from tandem.v1 import coordinator_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")
Code = grpc.StatusCode
INVALID = Code.INVALID_ARGUMENT
NAN, INF = math.nan, math.inf
WIDTH = 256


def request(prompt: Any = (1, 2, 3), /, **fields: Any) -> pb.GenerateRequest:
    """sampling, stopping, speculation as dicts; others as they are. `prompt`: None, ids, a text or messages."""
    kinds = {
        "sampling": pb.SamplingParams,
        "stopping": pb.StoppingParams,
        "speculation": pb.SpeculationParams,
        "prior_output": pb.TokenIds,
    }
    message = pb.GenerateRequest(**{key: kinds[key](**fields[key]) if key in kinds else fields[key] for key in fields})
    if isinstance(prompt, str):
        message.text = prompt
    elif isinstance(prompt, pb.Chat):
        message.chat.CopyFrom(prompt)
    elif prompt is not None:
        message.token_ids.CopyFrom(pb.TokenIds(ids=prompt))
    return message


def chat(*turns: tuple[str, str]) -> pb.Chat:
    return pb.Chat(messages=[pb.Message(role=role, content=content) for role, content in turns])


def sampling(prompt: Any = (1, 2, 3), /, **fields: Any) -> pb.GenerateRequest:
    return request(prompt, sampling=fields)


def stopping(prompt: Any = (1, 2, 3), /, **fields: Any) -> pb.GenerateRequest:
    return request(prompt, stopping=fields)


NAMED: dict[str, tuple[pb.GenerateRequest, str]] = {
    "1 none": (request(None), "input"),
    "1 empty text": (request(""), "input"),
    "1 empty ids": (request(()), "input"),
    "2 no messages": (request(pb.Chat()), "chat"),
    "2 unknown role": (request(chat(("user", "hello"), ("robot", "beep"))), "chat.messages.role"),
    "3 largest id": (request((1, 2**32 - 1)), "prompt"),
    "3 head width": (request((WIDTH,)), "prompt"),
    "3 largest signed id": (request((2**31 - 1,)), "prompt"),
    "3 in prior output": (request(prior_output={"ids": [WIDTH]}), "prior_output"),
    "4 fills the context": (request((1,) * CONTEXT_LENGTH), "input"),
    "4 more than the context": (request("a" * (CONTEXT_LENGTH + 1)), "input"),
    "4 far more": (request((1,) * 300_000), "input"),
    "5 no room": (stopping((1,) * 250, max_tokens=7), "stopping.max_tokens"),
    **{
        f"7 temperature {value}": (sampling(temperature=value), "sampling.temperature")
        for value in (NAN, INF, -INF, -0.5, 2.1)
    },
    **{f"8 top_p {value}": (sampling(top_p=value), "sampling.top_p") for value in (0.0, 1.0001, NAN, -1.0)},
    **{f"8 min_p {value}": (sampling(min_p=value), "sampling.min_p") for value in (-0.1, NAN, 1.5)},
    "10 no tokens": (stopping(max_tokens=0), "stopping.max_tokens"),
    "11 too many tokens": (stopping(max_tokens=2**31 - 1), "stopping.max_tokens"),
    "11 most tokens": (stopping(max_tokens=2**32 - 1), "stopping.max_tokens"),
    "12 long block": (request(speculation={"num_tokens": 17}), "speculation.num_tokens"),
    "13 many stops": (stopping(stop=["x"] * 10_000), "stopping.stop"),
    "13 a long stop": (stopping(stop=["x" * 1_000_000]), "stopping.stop"),
    "13 257 bytes in 129 letters": (stopping(stop=["é" * 128 + "a"]), "stopping.stop"),
    "13 an empty stop": (stopping(stop=["a", ""]), "stopping.stop"),
    "14 stop token": (stopping(stop_token_ids=[WIDTH], min_tokens=1), "stopping.stop_token_ids"),
    "14 many stop tokens": (stopping(stop_token_ids=[1] * 129), "stopping.stop_token_ids"),
    **{
        f"15 repetition_penalty {value}": (sampling(repetition_penalty=value), "sampling.repetition_penalty")
        for value in (0.0, NAN, 1e30, -1.0)
    },
    **{
        f"15 {name} {value}": (sampling(**{name: value}), f"sampling.{name}")
        for name in ("frequency_penalty", "presence_penalty")
        for value in (99.0, NAN, -2.5)
    },
    **{
        f"15 logit_bias {value}": (sampling(logit_bias={3: value}), "sampling.logit_bias")
        for value in (101.0, NAN, -INF)
    },
    "15 logit_bias of no id": (sampling(logit_bias={WIDTH: 1.0}), "sampling.logit_bias"),
    "15 many biases": (sampling(logit_bias=dict.fromkeys(range(1025), 1.0)), "sampling.logit_bias"),
    **{f"16 logprobs {value}": (sampling(logprobs=value), "sampling.logprobs") for value in (21, 10**6, 2**32 - 1)},
    "18 a long name": (request(request_id="x" * 129), "request_id"),
    "18 a name with a line in it": (request(request_id="a\nb"), "request_id"),
    "29 acceptance": (request(speculation={"acceptance": 9}), "speculation.acceptance"),
    "29 lookahead": (request(speculation={"lookahead": 77}), "speculation.lookahead"),
    "29 negative": (request(speculation={"lookahead": -1}), "speculation.lookahead"),
}


@pytest.mark.parametrize("row", NAMED)
async def test_the_field_is_named(house: House, row: str) -> None:
    """Rows 1 to 5, 7, 8, 10 to 16, 29: INVALID_ARGUMENT with BadRequest."""
    message, field = NAMED[row]
    beside, outcome = await asyncio.gather(house.ask(good()), house.ask(message))
    assert (outcome.code, outcome.fields) == (INVALID, [field])
    assert is_good(beside)
    await house.assert_well()


def nested(depth: int) -> bytes:
    """Groups within groups, of a field that nobody knows."""
    return b"\x9b\x06" * depth + b"\x9c\x06" * depth


GARBAGE = {
    "bytes": b"\xff\xfe\xfdgarbage",
    "truncated": good().SerializeToString()[:-3],
    "a string that is no UTF-8": b"\x0a\x02\xc3\x28",
    "nested": nested(200),
    "wrong wire type": b"\x18\x01\x1b",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_bytes_that_are_no_request(house: House, name: str) -> None:
    """Row 25."""
    beside, outcome = await asyncio.gather(house.ask(good()), house.ask(GARBAGE[name]))
    assert (outcome.code, outcome.fields) == (INVALID, ["request"])
    assert is_good(beside)
    await house.assert_well()


FINE: dict[str, pb.GenerateRequest] = {
    "7 -0.0": good(),
    "7 1e-40": good(),
    "9 top_k": good(),
    "12 longest block": good(speculation=pb.SpeculationParams(num_tokens=16)),
    "13 longest stop": good(),
    "unknown fields": pb.GenerateRequest.FromString(good().SerializeToString() + b"\x9a\x06\x03abc"),
}
FINE["7 -0.0"].sampling.temperature = -0.0
FINE["7 1e-40"].sampling.temperature = 1e-40
FINE["9 top_k"].sampling.top_k = 2**31 - 1
FINE["13 longest stop"].stopping.stop.extend(["é" * 128] * 16)


@pytest.mark.parametrize("row", FINE)
async def test_what_is_just_allowed(house: House, row: str) -> None:
    """Rows 7, 9, 12, 13: served as ever."""
    assert is_good(await house.ask(FINE[row]))
    await house.assert_well()


async def test_top_k_of_all_is_no_top_k(house: House) -> None:
    """Row 9: sampled too."""
    texts = [
        await house.ask(sampling(seed=5, top_k=top_k) if top_k else sampling(seed=5)) for top_k in (0, WIDTH, 2**31 - 1)
    ]
    assert texts[0].ids == texts[1].ids == texts[2].ids != []


async def test_output_is_shortened_to_the_context(house: House) -> None:
    """Row 5: max_tokens unset."""
    outcome = await house.ask(sampling((1,) * 250, temperature=0.0))
    assert outcome.ids == reference((1,) * 250, 6)
    assert outcome.chunks[-1].finish.reason == pb.FINISH_REASON_CONTEXT_FULL
    await house.assert_well()


async def test_one_byte_over_the_limit(house: House) -> None:
    """Row 6: gRPC's own answer, without RetryInfo."""
    size = 1 << 20
    empty = len(request("x" * (size - 10)).SerializeToString()) - (size - 10)
    fits, too_large = request("x" * (size - empty)), request("x" * (size - empty + 1))
    assert fits.ByteSize() == size
    beside, outcome, largest = await asyncio.gather(house.ask(good()), house.ask(too_large), house.ask(fits))
    assert (outcome.code, outcome.retry_s) == (Code.RESOURCE_EXHAUSTED, None)
    assert (largest.code, largest.fields) == (INVALID, ["input"])
    assert is_good(beside)
    await house.assert_well()


@pytest.mark.parametrize("model", ["nope", "../../etc/passwd", "target\0", "/", "x" * 100_000])
async def test_another_model(house: House, model: str) -> None:
    """Row 17: NOT_FOUND, from the name alone."""
    beside, outcome = await asyncio.gather(house.ask(good(model="target")), house.ask(good(model=model)))
    assert outcome.code is Code.NOT_FOUND
    assert is_good(beside)
    await house.assert_well()


async def test_the_id_of_a_running_request(house: House) -> None:
    """Row 18: ALREADY_EXISTS with the same body and with another."""
    house.target.gate.close()
    first = asyncio.create_task(house.ask(good(request_id="mine")))
    await assert_eventually(house.target.gate.entered.is_set)
    again = await house.ask(good(request_id="mine"))
    other = await house.ask(request((5,), request_id="mine"))
    house.target.gate.released.set()
    assert (again.code, other.code) == (Code.ALREADY_EXISTS, Code.ALREADY_EXISTS)
    assert is_good(await first)
    assert is_good(await house.ask(good(request_id="mine")))
    await house.assert_well()


async def test_prior_output_that_is_over(house: House) -> None:
    """Row 19: one last chunk with finish, no model call."""
    output = reference(GOOD_PROMPT, GOOD_LENGTH)
    house.target.gate.entered.clear()
    long = good(prior_output=pb.TokenIds(ids=[*output, 1, 2]))
    past = good(prior_output=pb.TokenIds(ids=output[:8]))
    past.stopping.stop_token_ids.append(output[5])
    for message, reason in ((long, pb.FINISH_REASON_MAX_TOKENS), (past, pb.FINISH_REASON_END_TOKEN)):
        outcome = await house.ask(message)
        assert [list(chunk.token_ids) for chunk in outcome.chunks] == [[]]
        assert outcome.chunks[0].finish.reason == reason
    assert not house.target.gate.entered.is_set()
    await house.assert_well()


async def test_another_fingerprint(house: House) -> None:
    """Row 20: FAILED_PRECONDITION."""
    fingerprint = (await house.ask(good())).chunks[0].target_fingerprint
    output = reference(GOOD_PROMPT, GOOD_LENGTH)
    prior = pb.TokenIds(ids=output[:7])
    outcome = await house.ask(good(prior_output=prior, target_fingerprint="another"))
    assert outcome.code is Code.FAILED_PRECONDITION
    outcome = await house.ask(good(prior_output=prior, target_fingerprint=fingerprint))
    assert outcome.ids == output[7:]
    await house.assert_well()


async def test_a_deadline_that_has_passed(house: House) -> None:
    """Row 22: no model call; and one that passes in mid-call leaves nothing."""
    house.target.gate.entered.clear()
    assert (await house.ask(good(), -1.0)).code is Code.DEADLINE_EXCEEDED
    late = FakeContext(remaining_s=0.0)  # grpcio runs the handler of a call whose deadline passes on its way
    assert await answer_of(house.door, good().SerializeToString(), late) == []
    assert late.code is Code.DEADLINE_EXCEEDED
    assert not house.target.gate.entered.is_set()
    house.target.gate.close()
    assert (await house.ask(good(), 0.1)).code is Code.DEADLINE_EXCEEDED
    house.target.gate.released.set()
    await house.assert_well()
    assert is_good(await house.ask(good()))


async def test_two_messages_on_a_unary_request(house: House) -> None:
    """Row 26, as grpcio does it: the first is served."""
    call = house.channel.stream_stream(GENERATE, None, pb.GenerateChunk.FromString)(timeout=20.0)
    await call.write(good().SerializeToString())
    await call.write(request((9,)).SerializeToString())
    await call.done_writing()
    chunks = [chunk async for chunk in call]
    assert [token for chunk in chunks for token in chunk.token_ids] == reference(GOOD_PROMPT, GOOD_LENGTH)
    await house.assert_well()


async def test_half_close_without_a_message(house: House) -> None:
    """Row 26, as grpcio does it: it ends at the deadline, and leaves nothing behind."""
    num_tasks = len(asyncio.all_tasks())
    call = house.channel.stream_stream(GENERATE, None, pb.GenerateChunk.FromString)(timeout=0.3)
    await call.done_writing()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    await house.assert_well()
    await assert_eventually(lambda: len(asyncio.all_tasks()) <= num_tasks)
    assert is_good(await house.ask(good()))


@pytest.mark.parametrize("method", ["Generat", "Admin", ""])
async def test_an_unknown_method(house: House, method: str) -> None:
    """Row 27."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await house.channel.unary_unary(f"/tandem.v1.Coordinator/{method}", None, None)(b"")
    assert caught.value.code() is Code.UNIMPLEMENTED
    await house.assert_well()


async def test_a_cancel_before_the_first_token(house: House) -> None:
    """Row 28: CANCELLED, memory freed."""
    house.target.gate.close()
    call = house.channel.unary_stream(GENERATE, None, pb.GenerateChunk.FromString)(good().SerializeToString())
    await assert_eventually(house.target.gate.entered.is_set)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.read()
    house.target.gate.released.set()
    assert await call.code() is Code.CANCELLED
    await house.assert_well()


async def test_lookahead_by_branches(house: House) -> None:
    """Not built, and says so."""
    message = request(speculation={"lookahead": pb.LOOKAHEAD_BRANCHES})
    assert (await house.ask(message)).code is Code.UNIMPLEMENTED


async def test_any_bytes_are_a_status_request(house: House) -> None:
    """Status asks for nothing, so nothing in it can be wrong."""
    for message in (b"", b"\xff\xff\xff", nested(200)):
        answer = await house.channel.unary_unary("/tandem.v1.Coordinator/Status", None, None)(message)
        assert pb.StatusResponse.FromString(answer).model == "target"


async def test_a_full_queue() -> None:
    """Row 23: RESOURCE_EXHAUSTED with RetryInfo; those who run and wait are served."""
    async with open_house(max_running=1, max_waiting=1) as house:
        house.target.gate.close()
        served = [asyncio.create_task(house.ask(good())) for _ in range(2)]
        service = house.door.service
        assert service is not None
        await assert_eventually(lambda: service._admission.num_running == service._admission.num_waiting == 1)
        outcome = await house.ask(good())
        house.target.gate.released.set()
        assert outcome.code is Code.RESOURCE_EXHAUSTED and (outcome.retry_s or 0) > 0
        assert all(map(is_good, await asyncio.gather(*served)))
        await house.assert_well()


async def test_no_target() -> None:
    """Rows 24 and, of known-faults, 94: UNAVAILABLE, and health says so, until it is back."""
    async with open_house(target_wait_s=0.5) as house:
        await house.target.stop()
        service = house.door.service
        assert service is not None
        await assert_eventually(lambda: not service._pool.targets.open)
        assert (await house.ask(good())).code is Code.UNAVAILABLE
        assert await house.health() != SERVING
        await house.target.start()
        await assert_eventually(lambda: service._pool.targets.open)
        assert is_good(await house.ask(good()))
        await house.assert_well()


async def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    """Row 2: chat has no meaning there; plain text has."""
    folder = tmp_path / "target"
    shutil.copytree(tiny_folder("target"), folder)
    (folder / "chat_template.jinja").unlink()
    async with open_house(folder) as house:
        outcome = await house.ask(request(chat(("user", "hello"))))
        assert (outcome.code, outcome.fields) == (INVALID, ["chat"])
        assert is_good(await house.ask(good()))
        await house.assert_well()
