"""A coordinator that says what it is told to say, and processes that behave in one stated way."""

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from tandem.cli.result import Generation
from tandem.v1 import coordinator_pb2 as pb
from tandem.v1 import coordinator_pb2_grpc

D, C, B, P = pb.ORIGIN_DRAFT, pb.ORIGIN_CORRECTION, pb.ORIGIN_BONUS, pb.ORIGIN_PLAIN

SPECULATION = pb.SpeculationStats(
    num_verifies=2,
    num_draft_tokens=4,
    num_accepted_tokens=2,
    num_rollbacks=1,
    num_ahead_hits=1,
    num_fallbacks={"late": 1, "lost": 2},
)
FINISH = pb.Finish(
    reason=pb.FINISH_REASON_MAX_TOKENS,
    speculation=SPECULATION,
    timing=pb.Timing(first_token_ns=1_000_000_000, total_ns=2_000_000_000),
)
CHUNKS = (
    pb.GenerateChunk(token_ids=[5], text="The", origins=[P], prompt_token_ids=[1, 2]),
    pb.GenerateChunk(offset=1, token_ids=[6, 7, 8], text=" sky is", origins=[D, D, C], finish=FINISH),
)


class ScriptedCoordinator(coordinator_pb2_grpc.CoordinatorServicer):
    """Answers every Generate with the same chunks or error, and each Status with the next one of a list."""

    def __init__(
        self,
        chunks: Iterable[pb.GenerateChunk] = CHUNKS,
        statuses: Iterable[pb.StatusResponse] = (pb.StatusResponse(),),
        error: status_pb2.Status | None = None,
    ) -> None:
        self.chunks = tuple(chunks)
        self.statuses = list(statuses)
        self.error = error
        self.requests: list[pb.GenerateRequest] = []

    def Generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateChunk]:
        self.requests.append(request)
        if self.error:
            context.abort_with_status(rpc_status.to_status(self.error))
        yield from self.chunks

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


@contextmanager
def serving(coordinator: ScriptedCoordinator) -> Iterator[str]:
    """Serves it on a free port; yields the address."""
    server = grpc.server(ThreadPoolExecutor(2))
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def bad_request(field: str, description: str) -> status_pb2.Status:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    return status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="bad\nrequest", details=[detail])


def generation(token_ids: Iterable[int], text: str = "", **speculation: Any) -> Generation:
    finish = pb.Finish(timing=FINISH.timing, speculation=pb.SpeculationStats(**speculation))
    return Generation(text=text, token_ids=tuple(token_ids), prompt_token_ids=(1, 2), finish=finish)


def python(code: str, *args: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *args)


# Leaves when standard input ends, as the services do.
UNTIL_ORPHANED = "import sys; sys.stdin.read()"
# Does not hear SIGTERM; says when it has stopped hearing.
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); sys.stdin.read()"
# Healthy from the beginning.
HEALTHY = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
server = grpc.server(ThreadPoolExecutor(2))
servicer = health.HealthServicer()
servicer.set("", health_pb2.HealthCheckResponse.SERVING)
health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
server.add_insecure_port(sys.argv[1])
server.start()
sys.stdin.read()
"""
