"""Protobuf messages of the public contract, from and to the client's values."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from google.protobuf.message import Message as PbMessage

from tandem.client.errors import FieldViolation, InvalidRequest, ProtocolFault
from tandem.client.request import Request, SamplingParams
from tandem.client.results import (
    Chunk,
    Finish,
    FinishReason,
    Logprobs,
    Origin,
    SpeculationStats,
    Start,
    Status,
    Timing,
    WorkerStatus,
)
from tandem.v1 import coordinator_pb2 as pb

_M = TypeVar("_M", bound=PbMessage)


def request_to_pb(request: Request) -> pb.GenerateRequest:
    """Raises InvalidRequest if a value has the wrong type, or does not fit its field."""
    chat = None
    if request.messages is not None:
        chat = pb.Chat(messages=[_fill(pb.Message(), "chat", role=m.role, content=m.content) for m in request.messages])
    ids = None if request.token_ids is None else _fill(pb.TokenIds(), "token_ids", ids=request.token_ids)
    return _fill(
        pb.GenerateRequest(),
        "",
        request_id=request.request_id,
        model=request.model,
        text=request.text,
        token_ids=ids,
        chat=chat,
        sampling=_sampling_to_pb(request.sampling),
        stopping=_stopping_to_pb(request),
        speculation=_speculation_to_pb(request),
        prior_output=pb.TokenIds(ids=request.prior_output),
        target_fingerprint=request.target_fingerprint,
        cache_salt=request.cache_salt,
    )


def _sampling_to_pb(sampling: SamplingParams) -> pb.SamplingParams:
    values = {field.name: getattr(sampling, field.name) for field in fields(SamplingParams)}
    return _fill(pb.SamplingParams(), "sampling", **values)


def _stopping_to_pb(request: Request) -> pb.StoppingParams:
    return _fill(
        pb.StoppingParams(),
        "stopping",
        max_tokens=request.max_tokens,
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
    )


def _speculation_to_pb(request: Request) -> pb.SpeculationParams:
    return _fill(
        pb.SpeculationParams(),
        "speculation",
        num_tokens=request.num_draft_tokens,
        acceptance=request.acceptance and request.acceptance.value,
        lookahead=request.lookahead and request.lookahead.value,
    )


def _fill(message: _M, path: str, **values: Any) -> _M:
    """Sets the fields one by one, so that a value that does not fit is named; None leaves a field unset."""
    for name, value in values.items():
        try:
            message.MergeFrom(type(message)(**{name: value}))
        except (TypeError, ValueError) as error:
            field = f"{path}.{name}" if path else name
            raise InvalidRequest(f"{field}: {error}", [FieldViolation(field, str(error))]) from error
    return message


def chunk_from_pb(message: pb.GenerateChunk | None) -> Chunk:
    """Raises ProtocolFault for None, which is how gRPC hands on what it could not parse."""
    if message is None:
        raise ProtocolFault("not a GenerateChunk")
    return Chunk(
        request_id=message.request_id,
        offset=message.offset,
        token_ids=tuple(message.token_ids),
        text=message.text,
        logprobs=tuple(_logprobs_from_pb(row) for row in message.logprobs),
        origins=tuple(Origin(origin) for origin in message.origins),
        start=_start_from_pb(message),
        finish=_finish_from_pb(message.finish) if message.HasField("finish") else None,
    )


def _start_from_pb(message: pb.GenerateChunk) -> Start | None:
    """A prompt is never empty: where it stands is the first chunk."""
    prompt = tuple(message.prompt_token_ids)
    return Start(message.seed, message.target_fingerprint, prompt) if prompt else None


def _logprobs_from_pb(row: pb.TokenLogprobs) -> Logprobs:
    return Logprobs(row.logprob, tuple((top.token_id, top.logprob) for top in row.top))


def _finish_from_pb(finish: pb.Finish) -> Finish:
    return Finish(
        reason=FinishReason(finish.reason),
        stop=finish.stop,
        stop_token_id=finish.stop_token_id if finish.HasField("stop_token_id") else None,
        num_prompt_tokens=finish.num_prompt_tokens,
        num_reused_prompt_tokens=finish.num_reused_prompt_tokens,
        num_output_tokens=finish.num_output_tokens,
        speculation=_speculation_from_pb(finish.speculation),
        timing=_timing_from_pb(finish.timing),
    )


def _speculation_from_pb(stats: pb.SpeculationStats) -> SpeculationStats:
    return SpeculationStats(
        num_verifies=stats.num_verifies,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        num_accepted_per_position=tuple(stats.num_accepted_per_position),
        num_rollbacks=stats.num_rollbacks,
        num_ahead_hits=stats.num_ahead_hits,
        num_wasted_draft_tokens=stats.num_wasted_draft_tokens,
        num_fallbacks=dict(stats.num_fallbacks),
    )


def _timing_from_pb(timing: pb.Timing) -> Timing:
    return Timing(
        queue_s=timing.queue_ns / 1e9,
        first_token_s=timing.first_token_ns / 1e9,
        total_s=timing.total_ns / 1e9,
        verify_s=timing.verify_ns / 1e9,
        draft_wait_s=timing.draft_wait_ns / 1e9,
        prompt_s=timing.prompt_ns / 1e9,
    )


def status_request() -> pb.StatusRequest:
    return pb.StatusRequest()


def status_from_pb(status: pb.StatusResponse | None) -> Status:
    """Raises ProtocolFault for None, which is how gRPC hands on what it could not parse."""
    if status is None:
        raise ProtocolFault("not a StatusResponse")
    return Status(
        model=status.model,
        version=status.version,
        workers=tuple(_worker_from_pb(worker) for worker in status.workers),
        num_running=status.num_running,
        num_waiting=status.num_waiting,
    )


def _worker_from_pb(worker: pb.WorkerStatus) -> WorkerStatus:
    return WorkerStatus(**{field.name: getattr(worker, field.name) for field in fields(WorkerStatus)})
