"""Family "what a client said is in the log": no prompt, no text and no token id reaches a log line, however a request
ends; what a client named is escaped; every record is one line."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from harness.services import System, running_system
from harness.waiting import assert_eventually

from tandem.config import Config, LogConfig
from tandem.logs import MAX_LENGTH, JsonFormatter, TextFormatter, escaped, log_event, set_up
from tandem.v1 import coordinator_pb2 as pb

CANARY = "zebra crossing"
IDS = (211, 197, 223, 199)
UNKNOWN_ID = 987654321
REQUEST_ID = "request-of-the-test"
# Two of the prompt's ids beside each other, or one that no vocabulary has: a lone small number may be a duration.
SAID = re.compile(rf"{CANARY}|211\D+197\D|197\D+223\D|223\D+199\D|{UNKNOWN_ID}")

Request = Callable[[System], Awaitable[Any]]


@pytest.fixture
def lines() -> Iterator[Callable[[], list[str]]]:
    """All that is logged meanwhile, from DEBUG on, as text and as JSON."""
    stream, root = io.StringIO(), logging.getLogger()
    before, level = root.handlers[:], root.level
    handlers = [logging.StreamHandler(stream), logging.StreamHandler(stream)]
    handlers[0].setFormatter(TextFormatter())
    handlers[1].setFormatter(JsonFormatter())
    root.handlers[:] = handlers
    root.setLevel(logging.DEBUG)
    yield lambda: stream.getvalue().splitlines()
    root.handlers[:] = before
    root.setLevel(level)


def ended(lines: list[str]) -> list[dict[str, Any]]:
    """The events of requests that ended."""
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return [event for event in events if event["message"] == "request ended"]


def asking(**fields: Any) -> Request:
    """A request that is read to its end, whatever that is."""

    async def ask(system: System) -> None:
        fields.setdefault("stopping", pb.StoppingParams(max_tokens=12))
        request = pb.GenerateRequest(request_id=REQUEST_ID, sampling=pb.SamplingParams(temperature=0.0), **fields)
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in system.stub.Generate(request):
                pass

    return ask


def broken(break_it: Callable[[System], Any]) -> Request:
    """A good request to services of which something fails with the client's words in its message."""

    async def ask(system: System) -> None:
        break_it(system)
        await asking(token_ids=pb.TokenIds(ids=IDS))(system)

    return ask


def quoting(*_: Any, **__: Any) -> Any:
    raise ValueError(f"cannot take {CANARY} {list(IDS)} {UNKNOWN_ID}")


async def cancelled(system: System) -> None:
    system.target.gate.close()
    call = system.call(IDS)
    reading = asyncio.create_task(anext(aiter(call)))
    await asyncio.to_thread(system.target.gate.entered.wait, 10)
    call.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    system.target.gate.released.set()


async def garbage(system: System) -> None:
    call = system.channel.unary_stream("/tandem.v1.Coordinator/Generate")(CANARY.encode() + bytes(IDS))
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass


async def lost_task(system: System) -> None:
    """A task that fails and that nobody asks: asyncio itself logs it."""

    async def fail() -> None:
        quoting()

    task = asyncio.create_task(fail())
    await assert_eventually(task.done)
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": f"never retrieved\n{task!r}", "exception": task.exception()})
    await asking(text=CANARY)(system)


def break_decoding(system: System) -> None:
    system.service._frontend.decode = quoting  # type: ignore[method-assign]


def break_encoding(system: System) -> None:
    system.service._frontend.prompt = quoting  # type: ignore[method-assign]


def break_target(system: System) -> None:
    system.target.engine._model.forward = quoting  # type: ignore[method-assign]


def break_draft(system: System) -> None:
    system.draft.engine._model.forward = quoting  # type: ignore[method-assign]


REQUESTS: dict[str, Request] = {
    "a text": asking(text=CANARY),
    "token ids": asking(token_ids=pb.TokenIds(ids=IDS)),
    "a chat": asking(chat=pb.Chat(messages=[pb.Message(role="user", content=CANARY)])),
    "a role that is not one": asking(chat=pb.Chat(messages=[pb.Message(role=CANARY, content=CANARY)])),
    "an unknown token": asking(token_ids=pb.TokenIds(ids=[*IDS, UNKNOWN_ID])),
    "an unknown prior token": asking(text=CANARY, prior_output=pb.TokenIds(ids=[UNKNOWN_ID])),
    "an unknown model": asking(text=CANARY, model=CANARY),
    "a stop string": asking(text="x", stopping=pb.StoppingParams(max_tokens=12, stop=[CANARY])),
    "a cancel": cancelled,
    "no request at all": garbage,
    "a tokenizer that fails": broken(break_encoding),
    "a decoder that fails": broken(break_decoding),
    "a target that fails": broken(break_target),
    "a draft that fails": broken(break_draft),
    "a task that nobody waits for": lost_task,
}


@pytest.fixture
async def system() -> AsyncIterator[System]:
    async with running_system() as system:
        yield system


@pytest.mark.parametrize("name", REQUESTS)
async def test_nothing_that_was_said_is_in_the_log(name: str, system: System, lines: Callable[[], list[str]]) -> None:
    await REQUESTS[name](system)
    await assert_eventually(lambda: ended(lines()))
    assert not [line for line in lines() if SAID.search(line)]


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_request_ends_in_one_line_with_its_id(
    name: str, system: System, lines: Callable[[], list[str]]
) -> None:
    await REQUESTS[name](system)
    await assert_eventually(lambda: ended(lines()))
    (event,) = ended(lines())
    assert event["outcome"] and event["total_s"] >= 0
    assert bool(event["request_id"]) == (name != "no request at all")


async def test_the_counts_of_a_line_are_those_that_the_client_gets(
    system: System, lines: Callable[[], list[str]]
) -> None:
    tokens, finish = await system.generate(IDS)
    await assert_eventually(lambda: ended(lines()))
    (event,) = ended(lines())
    assert event["outcome"] == "max_tokens"
    assert (event["prompt_tokens"], event["output_tokens"]) == (len(IDS), len(tokens))
    assert event["verifies"] == finish.speculation.num_verifies
    assert event["accepted_tokens"] == finish.speculation.num_accepted_tokens


def record(message: str, *args: object, name: str = "tandem.test", error: Exception | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord(name, logging.INFO, __file__, 1, message, args, exc_info)


@pytest.mark.parametrize("hostile", ["a\nb", "a\r\nb", "a\x1b[31mb", "a\u2028b", "a\x00b", "a\ud800b"])
def test_a_record_is_one_line_whatever_is_in_it(hostile: str) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        for entry in (record("%s", hostile), record(hostile)):
            entry.fields = {"request_id": escaped(hostile)}
            assert formatter.format(entry).isprintable()


@pytest.mark.parametrize("length", [0, 1, MAX_LENGTH, MAX_LENGTH + 1, 10_000])
def test_a_name_is_cut(length: int) -> None:
    assert escaped("x" * length) == "x" * min(length, MAX_LENGTH)


def failures() -> Iterator[Exception]:
    """One by itself, one from another, one while another was handled, and a group of them."""
    for causing in (None, "cause", "context"):
        try:
            try:
                quoting()
            except ValueError as error:
                if causing == "cause":
                    raise KeyError(CANARY) from error
                if causing == "context":
                    raise KeyError(CANARY)  # noqa: B904  (that is the case)
                raise
        except (ValueError, KeyError) as error:
            yield error
    yield ExceptionGroup(CANARY, [ValueError(CANARY), KeyError(UNKNOWN_ID)])


@pytest.mark.parametrize("error", list(failures()), ids=["bare", "cause", "context", "group"])
def test_a_traceback_says_where_and_what_but_quotes_nothing(error: Exception) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        text = formatter.format(record("it failed", error=error))
        assert not SAID.search(text)
        assert type(error).__name__ in text


def test_json_lines_hold_the_fields_of_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up(LogConfig(format="json", level="info"))
        log_event(logging.getLogger("tandem.test"), "it ended", outcome="stop", tokens=3)
        logging.getLogger("tandem.test").debug("too fine")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert (event["message"], event["outcome"], event["tokens"], event["level"]) == ("it ended", "stop", 3, "info")


def test_text_lines_hold_them_too() -> None:
    entry = record("it ended")
    entry.fields = {"outcome": "stop", "name": "two words"}
    assert TextFormatter().format(entry).endswith('tandem.test INFO it ended outcome=stop name="two words"')


@pytest.mark.parametrize("setting", [{"format": "xml"}, {"level": "loud"}, {"colour": "red"}])
def test_a_wrong_setting_is_refused(setting: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"log.{next(iter(setting))}"):
        Config(log=setting)  # type: ignore[arg-type]
