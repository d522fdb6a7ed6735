"""The checker itself: it says nothing of a good history, and catches every way to corrupt one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from faults.history import Accepted, Asked, Came, Ended, Event, Released, Remains
from faults.invariants import INVARIANTS, violations

Corruption = Callable[[list[Event], random.Random], list[Event]]


def good_history(rng: random.Random) -> list[Event]:
    """Three requests, entangled; two of them exact, one under rejection. Two incarnations of each of two workers."""
    streams = [_request(f"r{index}", rng, is_exact=index < 2) for index in range(3)]
    streams += [_worker(worker, incarnation, rng) for worker in ("target 0", "draft 0") for incarnation in (1, 2)]
    events: list[Event] = []
    while streams := [stream for stream in streams if stream]:
        events.append(rng.choice(streams).pop(0))
    return [*events, Remains("sessions", 0, 0), Remains("tasks", 7, 7)]


def _request(name: str, rng: random.Random, is_exact: bool) -> list[Event]:
    output = tuple(rng.randrange(256) for _ in range(rng.randrange(8, 20)))
    events: list[Event] = [Asked(name, len(output), output if is_exact else None, 10.0, 100.0)]
    offset = 0
    while offset < len(output):
        tokens = output[offset : offset + rng.randrange(1, 4)]
        events.append(Came(name, offset, tokens, 101.0 + offset))
        offset += len(tokens)
    return [*events, Ended(name, "OK", 109.0)]


def _worker(name: str, incarnation: int, rng: random.Random) -> list[Event]:
    session, number, events = rng.randbytes(16), 0, list[Event]()
    for _ in range(5):
        number += rng.randrange(1, 3)
        events.append(Accepted(name, incarnation, session, number))
    return [*events, Released(name, incarnation, session)]


def _indices(events: list[Event], kind: type) -> list[int]:
    return [index for index, event in enumerate(events) if isinstance(event, kind)]


def _changed(kind: type, **fields: Callable[[Event], object]) -> Corruption:
    def corrupt(events: list[Event], rng: random.Random) -> list[Event]:
        index = rng.choice(_indices(events, kind))
        changes = {name: change(events[index]) for name, change in fields.items()}
        return [*events[:index], replace(events[index], **changes), *events[index + 1 :]]  # type: ignore[arg-type]

    return corrupt


def _without(kind: type) -> Corruption:
    def corrupt(events: list[Event], rng: random.Random) -> list[Event]:
        index = rng.choice(_indices(events, kind))
        return events[:index] + events[index + 1 :]

    return corrupt


def _twice(kind: type) -> Corruption:
    def corrupt(events: list[Event], rng: random.Random) -> list[Event]:
        index = rng.choice(_indices(events, kind))
        return [*events[:index], events[index], *events[index:]]

    return corrupt


def _chunks(events: list[Event], request: str) -> list[int]:
    """Where the chunks of a request are."""
    return [index for index in _indices(events, Came) if events[index].request == request]  # type: ignore[union-attr]


def _lost(events: list[Event], rng: random.Random, is_last: bool) -> list[Event]:
    places = _chunks(events, rng.choice(["r0", "r1", "r2"]))
    index = places[-1] if is_last else rng.choice(places[:-1])
    return events[:index] + events[index + 1 :]


def _swapped(events: list[Event], rng: random.Random) -> list[Event]:
    """Two neighbouring chunks of one request in the wrong order."""
    places = _chunks(events, rng.choice(["r0", "r1", "r2"]))
    first = rng.randrange(len(places) - 1)
    one, other, events = places[first], places[first + 1], list(events)
    events[one], events[other] = events[other], events[one]
    return events


def _early_end(events: list[Event], rng: random.Random) -> list[Event]:
    """A request whose status came before its last chunk."""
    end = rng.choice(_indices(events, Ended))
    last = _chunks(events, events[end].request)[-1]  # type: ignore[union-attr]
    return [*events[:last], events[end], *events[last:end], *events[end + 1 :]]


def _called_after_its_end(events: list[Event], rng: random.Random) -> list[Event]:
    over = events[rng.choice(_indices(events, Released))]
    assert isinstance(over, Released)
    return [*events, Accepted(over.worker, over.incarnation, over.session_id, 1000)]


def _other_token(chunk: Event) -> tuple[int, ...]:
    assert isinstance(chunk, Came)
    return (*chunk.tokens[:-1], (chunk.tokens[-1] + 1) % 256)


CORRUPTIONS: list[tuple[str, str, Corruption]] = [
    ("I1", "a chunk is lost", lambda events, rng: _lost(events, rng, is_last=False)),
    ("I1", "a chunk comes twice", _twice(Came)),
    ("I1", "chunks in the wrong order", _swapped),
    ("I1", "a gap", _changed(Came, offset=lambda chunk: chunk.offset + 1)),  # type: ignore[union-attr]
    ("I2", "another token, or none of the vocabulary", _changed(Came, tokens=lambda chunk: (300, 300))),
    ("I2", "the last chunk is lost", lambda events, rng: _lost(events, rng, is_last=True)),
    ("I2", "fewer tokens than were asked for", _changed(Asked, num_tokens=lambda asked: 40)),
    ("I2", "nobody asked", _without(Asked)),
    ("I3", "no end", _without(Ended)),
    ("I3", "two ends", _twice(Ended)),
    ("I3", "a bad end", _changed(Ended, status=lambda end: "Unavailable")),
    ("I3", "a late end", _changed(Ended, at_s=lambda end: 110.5)),
    ("I3", "tokens after the end", _early_end),
    ("I4", "one more than before", _changed(Remains, after=lambda left: 8)),
    ("I5", "a lower call", _changed(Accepted, number=lambda call: 0)),
    ("I5", "a call twice", _twice(Accepted)),
    ("I5", "a call of a session that has ended", _called_after_its_end),
]


@pytest.mark.parametrize("seed", range(20))
def test_a_good_history_has_no_violation(seed: int) -> None:
    assert violations(good_history(random.Random(seed))) == []


@pytest.mark.parametrize(("invariant", "corrupt"), [(row[0], row[2]) for row in CORRUPTIONS],
                         ids=[row[1] for row in CORRUPTIONS])  # fmt: skip
def test_every_corruption_is_caught_by_its_invariant(invariant: str, corrupt: Corruption) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        corrupted = corrupt(good_history(rng), rng)
        assert INVARIANTS[invariant](corrupted), f"seed {seed}: {invariant} sees nothing"


def test_one_wrong_token_is_seen_where_the_text_is_promised() -> None:
    """And only there: under rejection another token of the vocabulary is another lawful text."""
    rng = random.Random(0)
    events = good_history(rng)
    for index in _indices(events, Came):
        wrong = replace(events[index], tokens=_other_token(events[index]))  # type: ignore[call-arg]
        found = violations([*events[:index], wrong, *events[index + 1 :]])
        assert len(found) == (events[index].request != "r2")  # type: ignore[union-attr]


def test_a_worker_that_was_started_anew_may_see_low_numbers() -> None:
    calls: list[Event] = [Accepted("target 0", incarnation, b"s", 5) for incarnation in (1, 2)]
    assert violations([*calls, Accepted("target 1", 1, b"s", 1)]) == []


def test_every_invariant_has_its_corruptions() -> None:
    assert {row[0] for row in CORRUPTIONS} == set(INVARIANTS)
