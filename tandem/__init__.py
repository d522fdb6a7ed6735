"""Tandem: disaggregated speculative decoding.

What a program that asks a coordinator needs is here by name. It is loaded when first named: the services import this
package too, and have no use for it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.client import (
        Acceptance,
        AlreadyExists,
        AsyncClient,
        Cancelled,
        Chunk,
        Client,
        ClientClosed,
        ClientError,
        DeadlineExceeded,
        FailedPrecondition,
        FieldViolation,
        Finish,
        FinishReason,
        Generation,
        InvalidRequest,
        Logprobs,
        Lookahead,
        Message,
        NotFound,
        Origin,
        Overloaded,
        ProtocolFault,
        RequestFailed,
        Retry,
        SamplingParams,
        ServerFault,
        SpeculationStats,
        Start,
        Status,
        Timing,
        Unavailable,
        Unimplemented,
        UnknownFault,
        WorkerStatus,
    )

__all__ = [
    "Acceptance",
    "AlreadyExists",
    "AsyncClient",
    "Cancelled",
    "Chunk",
    "Client",
    "ClientClosed",
    "ClientError",
    "DeadlineExceeded",
    "FailedPrecondition",
    "FieldViolation",
    "Finish",
    "FinishReason",
    "Generation",
    "InvalidRequest",
    "Logprobs",
    "Lookahead",
    "Message",
    "NotFound",
    "Origin",
    "Overloaded",
    "ProtocolFault",
    "RequestFailed",
    "Retry",
    "SamplingParams",
    "ServerFault",
    "SpeculationStats",
    "Start",
    "Status",
    "Timing",
    "Unavailable",
    "Unimplemented",
    "UnknownFault",
    "WorkerStatus",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tandem.client

    return getattr(tandem.client, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
