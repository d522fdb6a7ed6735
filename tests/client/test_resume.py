"""After a broken stream the client goes on elsewhere, and the whole equals the undisturbed one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import grpc
import pytest

from tandem.client import Acceptance, Chunk, FailedPrecondition, ProtocolFault, Retry, Unavailable
from tandem.v1 import coordinator_pb2 as pb

from .asking import Asking, sync_client, undisturbed
from .fakes import (
    CUTS,
    FINGERPRINT,
    NUM_CHUNKS,
    OUTPUT,
    PROMPT,
    SEED,
    TEXT,
    BreaksAfter,
    Coordinator,
    Forgets,
    HangsAfter,
    Miscounts,
    Repeats,
    ShiftsAnOffset,
    Skips,
    serving,
)


@pytest.fixture(scope="module")
def whole() -> Any:
    with serving(Coordinator()) as address, sync_client(address) as client:
        return undisturbed(client.generate("Why?"))


@pytest.mark.parametrize("num_chunks", range(NUM_CHUNKS + 1))
def test_one_break_anywhere_changes_nothing(ask: Asking, whole: Any, num_chunks: int) -> None:
    coordinator = BreaksAfter(num_chunks)
    with serving(coordinator) as address:
        got = ask.generate(address, prompt="Why?")
    assert undisturbed(got) == whole
    assert got.num_resumptions == (0 < num_chunks < NUM_CHUNKS)
    assert len(coordinator.requests) == 1 + (num_chunks < NUM_CHUNKS)  # a break after the finish is none


@pytest.mark.parametrize("num_chunks", range(NUM_CHUNKS))
def test_a_stream_shows_no_trace_of_the_break(ask: Asking, num_chunks: int) -> None:
    with serving(BreaksAfter(num_chunks)) as address:
        chunks = ask.stream(address, prompt="Why?")
    assert [chunk.offset for chunk in chunks] == [0, *CUTS[:-1]]
    assert [chunk.start is None for chunk in chunks] == [False, True, True, True]
    assert "".join(chunk.text for chunk in chunks) == TEXT


def test_as_many_breaks_as_there_are_chunks(ask: Asking, whole: Any) -> None:
    """Attempts are counted from the last token on: progress buys new ones."""
    coordinator = BreaksAfter(1, times=NUM_CHUNKS)
    with serving(coordinator) as address:
        got = ask.generate(address, prompt="Why?", retry=Retry(max_attempts=2, first_pause_s=0.001))
    assert undisturbed(got) == whole
    assert got.num_resumptions == NUM_CHUNKS - 1


def test_the_next_request_carries_all_that_is_needed(ask: Asking) -> None:
    coordinator = BreaksAfter(2)
    with serving(coordinator) as address:
        ask.generate(address, messages=[{"role": "user", "content": "Why?"}], max_tokens=6, stop="!", request_id="mine")
    first, second = coordinator.requests
    assert (first.request_id, second.request_id) == ("mine", "mine/2")
    assert tuple(second.token_ids.ids) == PROMPT
    assert tuple(second.prior_output.ids) == OUTPUT[: CUTS[1]]
    assert second.target_fingerprint == FINGERPRINT
    assert second.sampling.seed == SEED
    assert second.stopping == first.stopping


R, C = pb.ACCEPTANCE_REJECTION, pb.ACCEPTANCE_COUPLED


@pytest.mark.parametrize(
    ("seed", "acceptance", "rule"), [(None, None, R), (5, None, C), (None, C, C), (5, R, R), (None, R, R)]
)
def test_it_goes_on_under_the_rule_it_began_with(
    ask: Asking, seed: int | None, acceptance: int | None, rule: int
) -> None:
    coordinator = BreaksAfter(1)
    named = None if acceptance is None else Acceptance(acceptance)
    with serving(coordinator) as address:
        ask.generate(address, prompt="Why?", seed=seed, acceptance=named)
    first, second = coordinator.requests
    assert first.speculation.acceptance == (acceptance or pb.ACCEPTANCE_UNSPECIFIED)
    assert second.speculation.acceptance == rule
    assert second.sampling.seed == (SEED if seed is None else seed)


def test_it_goes_on_at_the_next_address_and_stays_there(whole: Any) -> None:
    breaking, sound = BreaksAfter(2, times=9), Coordinator()
    with serving(breaking) as one, serving(sound) as other, sync_client(one, other) as client:
        assert undisturbed(client.generate("Why?")) == whole
        assert undisturbed(client.generate("Why?")) == whole
    assert (len(breaking.requests), len(sound.requests)) == (1, 2)


def test_it_outlives_a_coordinator_that_is_stopped(whole: Any) -> None:
    hanging, sound = HangsAfter(2), Coordinator()
    received: list[Chunk] = []
    with ExitStack() as stack:
        other = stack.enter_context(serving(sound))
        with serving(hanging) as one:
            client = stack.enter_context(sync_client(one, other))
            chunks = client.stream("Why?", timeout_s=20)
            received += [next(chunks), next(chunks)]
        received += chunks
    assert "".join(chunk.text for chunk in received) == TEXT
    assert tuple(sound.requests[0].prior_output.ids) == OUTPUT[: CUTS[1]]


def test_it_gives_up_after_so_many_attempts_without_a_token(ask: Asking) -> None:
    coordinator = BreaksAfter(0, times=99)
    with serving(coordinator) as address, pytest.raises(Unavailable) as caught:
        ask.generate(address, prompt="Why?", request_id="r", retry=Retry(max_attempts=3, first_pause_s=0.001))
    assert [request.request_id for request in coordinator.requests] == ["r", "r/2", "r/3"]
    assert caught.value.request_id == "r/3"


def test_another_target_ends_it(ask: Asking) -> None:
    """What came so far is of no use to it."""
    coordinator = BreaksAfter(1, times=9, code=grpc.StatusCode.FAILED_PRECONDITION)
    with serving(coordinator) as address, pytest.raises(FailedPrecondition):
        ask.generate(address, prompt="Why?")
    assert len(coordinator.requests) == 1


@pytest.mark.parametrize("request_id", ["x" * 128, "x" * 127])
def test_a_long_request_id_stays_within_bounds(ask: Asking, request_id: str) -> None:
    coordinator = BreaksAfter(0)
    with serving(coordinator) as address:
        ask.generate(address, prompt="Why?", request_id=request_id)
    assert coordinator.requests[1].request_id == "x" * 126 + "/2"


FAULTS = [
    *(partial(ShiftsAnOffset, at, by) for at in range(NUM_CHUNKS) for by in (1, -1) if at or by > 0),
    *(partial(Repeats, at) for at in range(NUM_CHUNKS - 1)),
    *(partial(Skips, at) for at in range(NUM_CHUNKS)),
    partial(Miscounts),
    partial(Forgets, 2),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.func.__name__)
def test_chunks_that_do_not_fit_are_a_protocol_fault(ask: Asking, fault: Callable[[], Coordinator]) -> None:
    coordinator = fault()
    with serving(coordinator) as address, pytest.raises(ProtocolFault) as caught:
        ask.generate(address, prompt="Why?")
    assert caught.value.request_id == coordinator.requests[-1].request_id
    assert len(coordinator.requests) == 1 + isinstance(coordinator, Forgets)  # tokens that cannot be trusted
    assert coordinator.ended.wait(10)
