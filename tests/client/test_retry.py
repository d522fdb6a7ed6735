"""What is tried again, how often, and when not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tandem.client import DeadlineExceeded, Overloaded, Retry, Unavailable
from tandem.client.errors import ServerFault

from .asking import Asking, sync_client
from .fakes import TEXT, Coordinator, Refuses, Unready, overload, serving


@pytest.mark.parametrize("times", [1, 2, 4])
def test_unavailable_is_tried_again_under_new_ids(ask: Asking, times: int) -> None:
    coordinator = Unready(times)
    with serving(coordinator) as address:
        got = ask.generate(address, prompt="Why?")
        assert ask.status(address).model == "tiny"
    assert (got.text, got.num_resumptions) == (TEXT, 0)
    assert len({request.request_id for request in coordinator.requests}) == times + 1
    assert not coordinator.requests[-1].prior_output.ids


def test_unavailable_for_good_is_raised(ask: Asking) -> None:
    coordinator = Unready(99)
    with serving(coordinator) as address:
        with pytest.raises(Unavailable, match="broken off"):
            ask.generate(address, prompt="Why?")
        with pytest.raises(Unavailable, match="starting"):
            ask.status(address)
    assert (len(coordinator.requests), coordinator.num_statuses) == (5, 5)


def test_nobody_at_the_first_address(ask: Asking) -> None:
    """Without a pause: another address is untried."""
    patient = Retry(max_attempts=2, first_pause_s=60)
    with serving(Coordinator()) as address:
        assert ask.generate("127.0.0.1:1", address, prompt="Why?", retry=patient).text == TEXT
        assert ask.status("127.0.0.1:1", address, retry=patient).model == "tiny"


def test_an_overload_that_passes_is_waited_for(ask: Asking) -> None:
    coordinator = Refuses(overload(0.2), times=2)
    began_s = time.monotonic()
    with serving(coordinator) as address:
        assert ask.generate(address, prompt="Why?", timeout_s=20).text == TEXT
    assert time.monotonic() - began_s >= 0.4
    assert len(coordinator.requests) == 3


@pytest.mark.parametrize(
    ("retry_after_s", "wanted"),
    [
        (None, {}),  # a message too large stays too large
        (10.0, {"timeout_s": 5}),  # no time for it
        (31.0, {}),  # longer than the client waits
    ],
)
def test_another_overload_is_raised_at_once(ask: Asking, retry_after_s: float | None, wanted: Any) -> None:
    coordinator = Refuses(overload(retry_after_s))
    began_s = time.monotonic()
    with serving(coordinator) as address, pytest.raises(Overloaded) as caught:
        ask.generate(address, prompt="Why?", **wanted)
    assert time.monotonic() - began_s < 4
    assert caught.value.retry_after_s == retry_after_s
    assert len(coordinator.requests) == 1


def test_no_pause_that_outlasts_the_deadline(ask: Asking) -> None:
    """The cause is of more use than the deadline that it would run into."""
    coordinator = Unready(99)
    with serving(coordinator) as address, pytest.raises(Unavailable):
        ask.generate(address, prompt="Why?", timeout_s=5, retry=Retry(first_pause_s=60, longest_pause_s=60))
    assert len(coordinator.requests) == 1


def test_every_attempt_has_what_is_left_of_the_time() -> None:
    coordinator = Refuses(overload(0.5), times=1)
    with serving(coordinator) as address, sync_client(address) as client:
        client.generate("Why?", timeout_s=8)
    _, second_s = coordinator.budgets_s
    assert second_s is not None
    assert second_s < 7.7  # on the wire it is rounded to a tenth


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_no_time_no_call(ask: Asking, timeout_s: float) -> None:
    coordinator = Coordinator()
    with serving(coordinator) as address, pytest.raises(DeadlineExceeded):
        ask.generate(address, prompt="Why?", timeout_s=timeout_s)
    assert not coordinator.requests


def test_endless_time_is_no_deadline(ask: Asking) -> None:
    with serving(Coordinator()) as address:
        assert ask.generate(address, prompt="Why?", timeout_s=float("inf")).text == TEXT


def test_pauses_double_within_bounds() -> None:
    retry = Retry(max_attempts=9, first_pause_s=1.0, longest_pause_s=4.0)
    ends = [1.0, 2.0, 4.0, 4.0]
    pauses = [retry.pause_s(Unavailable("no"), number, 1) for number in range(1, 5)]
    assert all(pause and end / 2 <= pause <= end for pause, end in zip(pauses, ends, strict=True)), pauses
    assert retry.pause_s(Unavailable("no"), 2, 3) == 0.0
    assert retry.pause_s(Unavailable("no"), 9, 1) is None
    assert retry.pause_s(ServerFault("no"), 1, 3) is None
