"""Errors of ours as gRPC statuses with details."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from tandem.errors import InvalidRequest, Overloaded, RequestError


class Context(Protocol):
    """What our handlers need of gRPC's context."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn: ...

    def time_remaining(self) -> float | None: ...


async def abort(context: Context, error: RequestError) -> NoReturn:
    """Ends a call with the status of `error`; InvalidRequest brings BadRequest, Overloaded RetryInfo."""
    status = status_pb2.Status(code=error.status.value[0], message=str(error), details=_details(error))
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)


def _details(error: RequestError) -> list[AnyMessage]:
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.description)
        return [_packed(error_details_pb2.BadRequest(field_violations=[violation]))]
    if isinstance(error, Overloaded):
        delay = Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        return [_packed(error_details_pb2.RetryInfo(retry_delay=delay))]
    return []


def _packed(message: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
