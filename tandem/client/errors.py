"""What a client raises, and the gRPC status each stands for.

TandemError
└── ClientError               `request_id` names the attempt that failed
    ├── RequestFailed         the coordinator, or gRPC itself, ended the call; `code` is its status
    │   ├── InvalidRequest        INVALID_ARGUMENT, `violations` name the fields; also raised before anything is sent
    │   ├── NotFound              NOT_FOUND: another model is served
    │   ├── AlreadyExists         ALREADY_EXISTS: the request id is running
    │   ├── FailedPrecondition    FAILED_PRECONDITION: the target is not the one that the generation began on
    │   ├── Overloaded            RESOURCE_EXHAUSTED, `retry_after_s` if it passes
    │   ├── Unavailable           UNAVAILABLE: no connection, starting, stopping, or no target worker
    │   ├── DeadlineExceeded      DEADLINE_EXCEEDED, the server's or our own
    │   ├── Cancelled             CANCELLED by the server or on the way to it
    │   ├── Unimplemented         UNIMPLEMENTED
    │   ├── ServerFault           INTERNAL
    │   └── UnknownFault          any other
    ├── ProtocolFault         the chunks do not fit one another; never retried, the tokens cannot be trusted
    └── ClientClosed          the client was closed before the call, or during it
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tandem.errors import TandemError


class ClientError(TandemError):
    """Root of what a client raises."""

    request_id = ""


class RequestFailed(ClientError):
    """A call ended with a status other than OK."""

    code = grpc.StatusCode.UNKNOWN


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """What is wrong with one field of a request."""

    field: str
    description: str


class InvalidRequest(RequestFailed):
    """The request is wrong, and stays so."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, message: str, violations: Iterable[FieldViolation] = ()) -> None:
        super().__init__(message)
        self.violations = tuple(violations)


class NotFound(RequestFailed):
    """Names a model that is not served."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(RequestFailed):
    """Uses the id of a running request."""

    code = grpc.StatusCode.ALREADY_EXISTS


class FailedPrecondition(RequestFailed):
    """The target is another one than the generation began on."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Overloaded(RequestFailed):
    """Too much work, or too large a message; passes only where `retry_after_s` is set."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(RequestFailed):
    """Not reached, not ready, or lost on the way."""

    code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceeded(RequestFailed):
    """`timeout_s` is over."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(RequestFailed):
    """Cancelled by someone else."""

    code = grpc.StatusCode.CANCELLED


class Unimplemented(RequestFailed):
    """Asks for what is not built."""

    code = grpc.StatusCode.UNIMPLEMENTED


class ServerFault(RequestFailed):
    """The server's fault; its log says why."""

    code = grpc.StatusCode.INTERNAL


class UnknownFault(RequestFailed):
    """A status that no class here stands for."""

    def __init__(self, message: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(message)
        self.code = code


class ProtocolFault(ClientError):
    """A coordinator broke the contract."""


class ClientClosed(ClientError):
    """The client is closed."""

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(message)


CLASS_OF_CODE: dict[grpc.StatusCode, type[RequestFailed]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.INTERNAL: ServerFault,
}


@contextmanager
def translated(request_id: str = "") -> Iterator[None]:
    """The one place where gRPC's errors become ours; all that leave it name the request."""
    try:
        yield
    except ClientError as error:
        error.request_id = request_id
        raise
    except grpc.aio.AioRpcError as error:
        raise _named(_from_rpc_error(error), request_id) from error
    except grpc.aio.UsageError as error:  # a call on a closed channel
        raise _named(ClientClosed(), request_id) from error
    except asyncio.CancelledError as error:
        if _task_is_cancelled():
            raise
        # A channel that is closed cancels its calls, which looks like a cancelled task to those who read them.
        raise _named(ClientClosed(), request_id) from error


def _named(error: ClientError, request_id: str) -> ClientError:
    error.request_id = request_id
    return error


def _task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _from_rpc_error(error: grpc.aio.AioRpcError) -> RequestFailed:
    code, message = error.code(), error.details() or error.code().name
    kind = CLASS_OF_CODE.get(code)
    if kind is None:
        return UnknownFault(message, code)
    if kind is InvalidRequest:
        return InvalidRequest(message, _violations(_details(error)))
    if kind is Overloaded:
        return Overloaded(message, _retry_after_s(_details(error)))
    return kind(message)


def _details(error: grpc.aio.AioRpcError) -> list[AnyMessage]:
    """The rich details of a status; none where they are missing or broken."""
    try:
        status = rpc_status.from_call(error)
    except (DecodeError, ValueError):
        return []
    return list(status.details) if status else []


def _violations(details: Iterable[AnyMessage]) -> Iterator[FieldViolation]:
    bad_request = error_details_pb2.BadRequest()
    for detail in details:
        if detail.Unpack(bad_request):
            for violation in bad_request.field_violations:
                yield FieldViolation(violation.field, violation.description)


def _retry_after_s(details: Iterable[AnyMessage]) -> float | None:
    retry_info = error_details_pb2.RetryInfo()
    for detail in details:
        if detail.Unpack(retry_info):
            delay_ns: int = retry_info.retry_delay.ToNanoseconds()
            return max(0.0, delay_ns / 1e9)
    return None
