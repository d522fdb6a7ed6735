"""Coordinators named for how they misbehave. All tell the same story: OUTPUT, cut into chunks as CUTS says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from tandem.v1 import coordinator_pb2 as pb
from tandem.v1 import coordinator_pb2_grpc

PROMPT = (11, 12, 13)
OUTPUT = (5, 6, 7, 8, 9, 10)
WORDS = ("The", " sky", " is", " blue", " to", "day")
TEXT = "".join(WORDS)
CUTS = (1, 4, 5, 6)  # ends of the chunks of an undisturbed stream
NUM_CHUNKS = len(CUTS)
SEED, FINGERPRINT = 2**64 - 59, "f00d"
DRAFTED, OWN = pb.ORIGIN_DRAFT, pb.ORIGIN_PLAIN

FINISH = pb.Finish(
    reason=pb.FINISH_REASON_STOP_STRING,
    stop="!",
    stop_token_id=10,
    num_prompt_tokens=len(PROMPT),
    num_reused_prompt_tokens=2,
    num_output_tokens=len(OUTPUT),
    speculation=pb.SpeculationStats(num_verifies=4, num_accepted_per_position=[2, 1], num_fallbacks={"late": 1}),
    timing=pb.Timing(total_ns=1_500_000_000),
)
STATUS = pb.StatusResponse(
    model="tiny", version="0.1.0", workers=[pb.WorkerStatus(role="target", address="t:7072", ready=True)], num_running=3
)


def chunk(start: int, end: int) -> pb.GenerateChunk:
    """Tokens [start, end) of the story."""
    return pb.GenerateChunk(
        offset=start,
        token_ids=OUTPUT[start:end],
        text="".join(WORDS[start:end]),
        logprobs=[pb.TokenLogprobs(logprob=-i, top=[pb.TopLogprob(token_id=i, logprob=-i)]) for i in range(start, end)],
        origins=[DRAFTED if i % 2 else OWN for i in range(start, end)],
        finish=FINISH if end == len(OUTPUT) else None,
    )


def told(request: pb.GenerateRequest) -> Iterator[pb.GenerateChunk]:
    """The story from where the caller has it; the first chunk also says how to go on."""
    start = len(request.prior_output.ids)
    assert tuple(request.prior_output.ids) == OUTPUT[:start]
    seed = request.sampling.seed if request.sampling.HasField("seed") else SEED
    first = pb.GenerateChunk(seed=seed, target_fingerprint=FINGERPRINT, prompt_token_ids=PROMPT)
    for end in (cut for cut in CUTS if cut > start):
        message = chunk(start, end)
        message.request_id = request.request_id
        message.MergeFrom(first)
        first.Clear()
        yield message
        start = end


class Coordinator(coordinator_pb2_grpc.CoordinatorServicer):
    """Behaves."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.budgets_s: list[float | None] = []
        self.num_statuses = 0
        self.ended = threading.Event()  # a Generate is over, whoever ended it
        self.num_ended = 0

    def Generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        self.requests.append(request)
        self.budgets_s.append(context.time_remaining())
        context.add_callback(self._end)
        yield from self.tell(request, context)

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        yield from told(request)

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        self.num_statuses += 1
        return STATUS

    def _end(self) -> None:
        self.num_ended += 1
        self.ended.set()


class BreaksAfter(Coordinator):
    """Breaks off its first `times` streams after `num_chunks` chunks each."""

    def __init__(self, num_chunks: int, times: int = 1, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        super().__init__()
        self._num_chunks = num_chunks
        self._times = times
        self._code = code

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        for number, message in enumerate(told(request)):
            if number == self._num_chunks and len(self.requests) <= self._times:
                break
            yield message
        if len(self.requests) <= self._times:
            context.abort(self._code, "broken off")


class Unready(BreaksAfter):
    """UNAVAILABLE `times` times, to Generate and to Status."""

    def __init__(self, times: int) -> None:
        super().__init__(0, times)

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        self.num_statuses += 1
        if self.num_statuses <= self._times:
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
        return STATUS


class ShiftsAnOffset(Coordinator):
    """Adds `by` to the offset of its chunk number `at`."""

    def __init__(self, at: int, by: int) -> None:
        super().__init__()
        self._at = at
        self._by = by

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        for number, message in enumerate(told(request)):
            message.offset += self._by if number == self._at else 0
            yield message


class Repeats(Coordinator):
    """Sends its chunk number `at` twice."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        for number, message in enumerate(told(request)):
            yield message
            if number == self._at:
                yield message


class Skips(Coordinator):
    """Leaves out its chunk number `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        yield from (message for number, message in enumerate(told(request)) if number != self._at)


class Miscounts(Coordinator):
    """Says at the end that there was one more token than there was."""

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        for message in told(request):
            message.finish.num_output_tokens += message.HasField("finish")
            yield message


class Forgets(BreaksAfter):
    """Breaks once, then goes on from a seed that it made up."""

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        if len(self.requests) > 1:
            request.sampling.seed = 1
        yield from super().tell(request, context)


class Refuses(Coordinator):
    """Ends its first `times` calls with a status that may have details."""

    def __init__(self, status: status_pb2.Status, times: int = 1_000_000) -> None:
        super().__init__()
        self._status = status
        self._times = times

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        if len(self.requests) <= self._times:
            context.abort_with_status(rpc_status.to_status(self._status))
        yield from told(request)


class HangsAfter(Coordinator):
    """Falls silent after `num_chunks` chunks, until the call is over."""

    def __init__(self, num_chunks: int) -> None:
        super().__init__()
        self._num_chunks = num_chunks

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        for number, message in enumerate(told(request)):
            if number == self._num_chunks:
                break
            yield message
        assert self.ended.wait(30)


class Slow(Coordinator):
    """Takes `pause_s` for every chunk."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self._pause_s = pause_s

    def tell(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        over = threading.Event()  # of this call
        context.add_callback(over.set)
        for message in told(request):
            if over.wait(self._pause_s):
                return
            yield message


class Mumbles(Coordinator):
    """Answers with bytes that are no message."""


@contextmanager
def serving(coordinator: Coordinator) -> Iterator[str]:
    """Serves it on a free port; yields the address."""
    with ThreadPoolExecutor(16) as pool:
        server = grpc.server(pool)
        if isinstance(coordinator, Mumbles):
            server.add_generic_rpc_handlers((_mumbling(),))
        else:
            coordinator_pb2_grpc.add_CoordinatorServicer_to_server(coordinator, server)
        reflection.enable_server_reflection(("tandem.v1.Coordinator", reflection.SERVICE_NAME), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def _mumbling() -> grpc.GenericRpcHandler:
    garbage = b"\xff\xff\xff"
    return grpc.method_handlers_generic_handler(
        "tandem.v1.Coordinator",
        {
            "Generate": grpc.unary_stream_rpc_method_handler(lambda request, context: iter([garbage])),
            "Status": grpc.unary_unary_rpc_method_handler(lambda request, context: garbage),
        },
    )


def status_with(code: int, *details: Any, message: str = "no") -> status_pb2.Status:
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    return status_pb2.Status(code=code, message=message, details=packed)


def overload(retry_after_s: float | None) -> status_pb2.Status:
    details = []
    if retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(int(retry_after_s * 1e9))
        details = [error_details_pb2.RetryInfo(retry_delay=delay)]
    return status_with(code_pb2.RESOURCE_EXHAUSTED, *details)


def bad_request(*violations: tuple[str, str]) -> status_pb2.Status:
    named = [error_details_pb2.BadRequest.FieldViolation(field=field, description=text) for field, text in violations]
    return status_with(code_pb2.INVALID_ARGUMENT, error_details_pb2.BadRequest(field_violations=named))
