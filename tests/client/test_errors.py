"""Every status has its class, and every class says what gRPC said."""

from __future__ import annotations

import pickle

import grpc
import pytest
from google.rpc import error_details_pb2

import tandem.client.errors
from tandem.client import (
    ClientError,
    FieldViolation,
    InvalidRequest,
    Overloaded,
    RequestFailed,
    Retry,
    ServerFault,
    UnknownFault,
)
from tandem.client.errors import CLASS_OF_CODE
from tandem.errors import TandemError

from .asking import Asking
from .fakes import BreaksAfter, Refuses, bad_request, overload, serving, status_with

CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
ONCE = Retry(max_attempts=1)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_every_status_has_a_class(ask: Asking, code: grpc.StatusCode) -> None:
    with serving(BreaksAfter(1, times=9, code=code)) as address, pytest.raises(RequestFailed) as caught:
        ask.generate(address, prompt="Why?", request_id="mine", retry=ONCE)
    error = caught.value
    assert type(error) is CLASS_OF_CODE.get(code, UnknownFault)
    assert (error.code, str(error), error.request_id) == (code, "broken off", "mine")
    assert isinstance(error.__cause__, grpc.aio.AioRpcError)
    assert isinstance(error, ClientError) and isinstance(error, TandemError)


def test_the_table_and_the_classes_agree() -> None:
    assert all(kind.code is code for code, kind in CLASS_OF_CODE.items())
    assert {*CLASS_OF_CODE.values(), UnknownFault} == set(RequestFailed.__subclasses__())


def test_the_docstring_is_the_tree() -> None:
    tree = tandem.client.errors.__doc__ or ""
    drawn = {line.split("─ ")[1].split()[0] for line in tree.splitlines() if "─ " in line}
    assert drawn == {"ClientError", *(kind.__name__ for kind in _below(ClientError))}


def _below(kind: type[ClientError]) -> set[type[ClientError]]:
    return {kind for child in kind.__subclasses__() for kind in {child, *_below(child)}}


def test_violations_name_the_fields(ask: Asking) -> None:
    status = bad_request(("sampling.top_p", "2 is not in (0, 1]"), ("stopping.stop", "empty"))
    with serving(Refuses(status)) as address, pytest.raises(InvalidRequest) as caught:
        ask.generate(address, prompt="Why?")
    assert caught.value.violations == (
        FieldViolation("sampling.top_p", "2 is not in (0, 1]"),
        FieldViolation("stopping.stop", "empty"),
    )


@pytest.mark.parametrize("retry_after_s", [None, 0.0, 1.25])
def test_an_overload_says_when_to_come_back(ask: Asking, retry_after_s: float | None) -> None:
    with serving(Refuses(overload(retry_after_s))) as address, pytest.raises(Overloaded) as caught:
        ask.generate(address, prompt="Why?", retry=ONCE)
    assert caught.value.retry_after_s == retry_after_s


def test_details_that_do_not_belong_are_passed_over(ask: Asking) -> None:
    status = status_with(3, error_details_pb2.ErrorInfo(reason="r"))
    with serving(Refuses(status)) as address, pytest.raises(InvalidRequest) as caught:
        ask.generate(address, prompt="Why?")
    assert caught.value.violations == ()


def test_broken_details_do_not_hide_the_status(ask: Asking) -> None:
    class Garbled(BreaksAfter):
        def tell(self, request, context):  # type: ignore[no-untyped-def]
            context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff"),))
            yield from super().tell(request, context)

    with serving(Garbled(0, 9, grpc.StatusCode.INVALID_ARGUMENT)) as address, pytest.raises(InvalidRequest):
        ask.generate(address, prompt="Why?")


def test_errors_travel_between_processes() -> None:
    error = Overloaded("busy", retry_after_s=2.0)
    error.request_id = "r"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.retry_after_s, copy.request_id) == ("busy", 2.0, "r")
    assert ServerFault("no").code is grpc.StatusCode.INTERNAL
