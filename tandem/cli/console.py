"""Where output goes: results to `out`, everything said beside them to `err`; and how an error reads."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def complain(error: Exception) -> None:
    """Shows an error on standard error, without a traceback and without folding its line."""
    err.print("error: ", style="bold red", end="")
    err.print(describe(error), markup=False, soft_wrap=True)


def describe(error: Exception) -> str:
    """One line for a gRPC error: status, details, the fields a BadRequest names. Others speak for themselves."""
    if not isinstance(error, grpc.Call):
        return str(error) or type(error).__name__
    details = " ".join((error.details() or "").split())
    # A violation is usually in the details as well; once is enough.
    violations = [text for text in _violations(error) if text not in details]
    return f"{error.code().name}: {'; '.join([details, *violations])}"


def _violations(call: grpc.Call) -> Iterator[str]:
    status = rpc_status.from_call(call)
    for detail in status.details if status else ():
        bad_request = error_details_pb2.BadRequest()
        if detail.Unpack(bad_request):
            yield from (f"{violation.field}: {violation.description}" for violation in bad_request.field_violations)
