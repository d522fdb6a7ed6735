"""The errors of Tandem, and the gRPC status each becomes.

TandemError
├── ConfigError               a setting is wrong; names the file and the field
├── ModelError                a model cannot be found, read or paired
├── RequestError              a client's request fails; `status` says how
│   ├── InvalidRequest        INVALID_ARGUMENT, `field` names the cause
│   ├── UnsupportedRequest    UNIMPLEMENTED
│   ├── UnknownModel          NOT_FOUND
│   ├── DuplicateRequest      ALREADY_EXISTS
│   ├── StateMismatch         FAILED_PRECONDITION
│   ├── Overloaded            RESOURCE_EXHAUSTED, `retry_after_s`
│   ├── Unavailable           UNAVAILABLE
│   └── GenerationFault       INTERNAL
└── WorkerError               between coordinator and worker
    ├── WorkerLost            the stream broke; its calls may or may not have run
    └── CallRefused           the worker answered with a refusal
"""

from __future__ import annotations

import grpc

from tandem.core.types import Refusal


class TandemError(Exception):
    """Root of all errors that Tandem raises on purpose."""


class ConfigError(TandemError):
    """A setting is wrong."""


class ModelError(TandemError):
    """A model cannot be found, read or paired."""


class RequestError(TandemError):
    """A request fails; the message is for the client."""

    status = grpc.StatusCode.INTERNAL


class InvalidRequest(RequestError):
    """The caller's fault, for good."""

    status = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.description = message


class UnsupportedRequest(RequestError):
    """Asks for what is not built."""

    status = grpc.StatusCode.UNIMPLEMENTED


class UnknownModel(RequestError):
    """Names a model that is not served."""

    status = grpc.StatusCode.NOT_FOUND


class DuplicateRequest(RequestError):
    """Uses the id of a running request."""

    status = grpc.StatusCode.ALREADY_EXISTS


class StateMismatch(RequestError):
    """Stands on a state that is not the present one."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class Overloaded(RequestError):
    """Too much work; passes."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(RequestError):
    """No target worker is ready, or the service is stopping."""

    status = grpc.StatusCode.UNAVAILABLE


class GenerationFault(RequestError):
    """The model gave what cannot be used, or a worker broke the contract."""

    status = grpc.StatusCode.INTERNAL


class WorkerError(TandemError):
    """A call to a worker has no answer."""


class WorkerLost(WorkerError):
    """The stream to a worker broke while the call was open."""


class CallRefused(WorkerError):
    """A worker answered a call with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.reason.name}: {refusal.message}")
        self.refusal = refusal
