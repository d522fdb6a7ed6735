"""The public contract: a Generate request taken apart, chunks and Status put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from tandem.core.ledger import Commit
from tandem.core.statistics import Statistics
from tandem.core.stopping import Ending
from tandem.core.types import Sampling
from tandem.errors import InvalidRequest
from tandem.rpc.codec.calls import sampling_from_pb
from tandem.rpc.codec.replies import logprobs_to_pb
from tandem.v1 import coordinator_pb2 as pb

LOOKAHEAD_OFF = pb.LOOKAHEAD_OFF
LOOKAHEAD_CHAIN = pb.LOOKAHEAD_CHAIN
LOOKAHEAD_BRANCHES = pb.LOOKAHEAD_BRANCHES
ACCEPTANCE_REJECTION = pb.ACCEPTANCE_REJECTION
ACCEPTANCE_COUPLED = pb.ACCEPTANCE_COUPLED
LOOKAHEADS = frozenset(pb.Lookahead.values())
ACCEPTANCES = frozenset(pb.Acceptance.values())


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A Generate request as it came: None where a field was absent, nothing checked."""

    request_id: str = ""
    model: str = ""
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    chat: tuple[tuple[str, str], ...] | None = None  # role, content
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    num_draft_tokens: int | None = None
    acceptance: int = 0
    lookahead: int = 0
    prior_output: tuple[int, ...] = ()
    target_fingerprint: str | None = None
    cache_salt: str = ""


def parse_request(message: bytes) -> RawRequest:
    """Raises InvalidRequest if `message` is no GenerateRequest."""
    try:
        request = pb.GenerateRequest.FromString(message)
    except DecodeError as error:
        raise InvalidRequest("request", "not a GenerateRequest") from error
    sampling, stopping, speculation = request.sampling, request.stopping, request.speculation
    kind = request.WhichOneof("input")
    return RawRequest(
        request_id=request.request_id,
        model=request.model,
        text=request.text if kind == "text" else None,
        token_ids=tuple(request.token_ids.ids) if kind == "token_ids" else None,
        chat=tuple((turn.role, turn.content) for turn in request.chat.messages) if kind == "chat" else None,
        sampling=sampling_from_pb(sampling),
        seed=sampling.seed if sampling.HasField("seed") else None,
        max_tokens=stopping.max_tokens if stopping.HasField("max_tokens") else None,
        stops=tuple(stopping.stop),
        stop_token_ids=tuple(stopping.stop_token_ids),
        ignore_eos=stopping.ignore_eos,
        min_tokens=stopping.min_tokens,
        num_draft_tokens=speculation.num_tokens if speculation.HasField("num_tokens") else None,
        acceptance=speculation.acceptance,
        lookahead=speculation.lookahead,
        prior_output=tuple(request.prior_output.ids),
        target_fingerprint=request.target_fingerprint if request.HasField("target_fingerprint") else None,
        cache_salt=request.cache_salt,
    )


def commit_to_pb(request_id: str, commit: Commit) -> pb.GenerateChunk:
    """One chunk; the caller adds what belongs on the first and the last."""
    return pb.GenerateChunk(
        request_id=request_id,
        offset=commit.offset,
        token_ids=commit.tokens,
        text=commit.text,
        logprobs=[logprobs_to_pb(row) for row in commit.logprobs],
        origins=[f"ORIGIN_{origin.name}" for origin in commit.origins],
    )


def add_start(chunk: pb.GenerateChunk, seed: int, fingerprint: str, prompt: Sequence[int]) -> None:
    """What the first chunk carries: all that is needed to go on elsewhere."""
    chunk.seed = seed
    chunk.target_fingerprint = fingerprint
    chunk.prompt_token_ids.extend(prompt)


@dataclass(frozen=True, slots=True)
class Durations:
    """Of one request, in seconds."""

    queue_s: float
    first_token_s: float
    total_s: float
    verify_s: float
    prompt_s: float  # of verify_s
    draft_wait_s: float


@dataclass(frozen=True, slots=True)
class Finish:
    """What the last chunk carries."""

    ending: Ending
    num_prompt_tokens: int
    num_output_tokens: int
    num_reused_prompt_tokens: int
    statistics: Statistics
    durations: Durations


def add_finish(chunk: pb.GenerateChunk, finish: Finish) -> None:
    """Makes a chunk the last one."""
    message = pb.Finish(
        reason=f"FINISH_REASON_{finish.ending.reason.name}",
        stop=finish.ending.stop,
        stop_token_id=finish.ending.stop_token_id,
        num_prompt_tokens=finish.num_prompt_tokens,
        num_output_tokens=finish.num_output_tokens,
        num_reused_prompt_tokens=finish.num_reused_prompt_tokens,
        speculation=_statistics_to_pb(finish.statistics),
        timing=_durations_to_pb(finish.durations),
    )
    chunk.finish.CopyFrom(message)


def _durations_to_pb(durations: Durations) -> pb.Timing:
    return pb.Timing(
        queue_ns=round(durations.queue_s * 1e9),
        first_token_ns=round(durations.first_token_s * 1e9),
        total_ns=round(durations.total_s * 1e9),
        verify_ns=round(durations.verify_s * 1e9),
        draft_wait_ns=round(durations.draft_wait_s * 1e9),
        prompt_ns=round(durations.prompt_s * 1e9),
    )


def _statistics_to_pb(stats: Statistics) -> pb.SpeculationStats:
    return pb.SpeculationStats(
        num_verifies=stats.num_verifies,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        num_accepted_per_position=stats.num_accepted_per_position,
        num_rollbacks=stats.num_rollbacks,
        num_ahead_hits=stats.num_ahead_hits,
        num_wasted_draft_tokens=stats.num_wasted_draft_tokens,
        num_fallbacks=dict(stats.fallbacks),
    )


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker as Status shows it."""

    role: str
    address: str
    ready: bool
    reason: str
    model: str = ""
    fingerprint: str = ""
    tensor_parallel_size: int = 0
    num_sessions: int = 0
    kv_used: float = 0.0


def status_to_pb(
    model: str, version: str, workers: Sequence[WorkerState], num_running: int, num_waiting: int
) -> pb.StatusResponse:
    """The answer to Status."""
    return pb.StatusResponse(
        model=model,
        version=version,
        workers=[
            pb.WorkerStatus(**{name: getattr(worker, name) for name in WorkerState.__slots__}) for worker in workers
        ],
        num_running=num_running,
        num_waiting=num_waiting,
    )
