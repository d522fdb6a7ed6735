"""What must hold of every history, whatever died: pure functions that name each violation.

I1  the client's offsets are 0, 1, 2 ...: no token comes twice, out of order, or not at all
I2  the tokens are those of the undisturbed run; under rejection as many as were asked for, all of the vocabulary
I3  every request ends once, well, in time, and nothing comes after its end
I4  what remains after all requests is what there was before them
I5  no worker accepts a call that is not higher than all it has seen of the session, or one of a session that has ended
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from faults.history import Accepted, Asked, Came, Ended, Event, Released, Remains

E = TypeVar("E")


def violations(events: Sequence[Event]) -> list[str]:
    """All of them, each with its invariant's name; empty for a history that is as it must be."""
    return [f"{name}: {what}" for name, check in INVARIANTS.items() for what in check(events)]


def offsets_are_contiguous(events: Sequence[Event]) -> list[str]:
    """I1."""
    found, next_offset = [], defaultdict[str, int](int)
    for chunk in _of(Came, events):
        if chunk.offset != next_offset[chunk.request]:
            found.append(f"{chunk.request}: offset {chunk.offset} where {next_offset[chunk.request]} was due")
        next_offset[chunk.request] = chunk.offset + len(chunk.tokens)
    return found


def tokens_are_the_reference(events: Sequence[Event]) -> list[str]:
    """I2. A request that ended badly has a part of its tokens: that it ended so is for I3 to say."""
    found, came = [], defaultdict[str, list[int]](list)
    for chunk in _of(Came, events):
        came[chunk.request] += chunk.tokens
    ended_well = {end.request for end in _of(Ended, events) if end.status == "OK"}
    for asked in _of(Asked, events):
        tokens, is_whole = came[asked.request], asked.request in ended_well
        if is_whole and len(tokens) != asked.num_tokens:
            found.append(f"{asked.request}: {len(tokens)} tokens of {asked.num_tokens}")
        if asked.output is not None and tuple(tokens) != asked.output[: len(tokens)]:
            found.append(f"{asked.request}: token {_first_difference(tokens, asked.output)} is another one")
        if any(not 0 <= token < asked.vocab_size for token in tokens):
            found.append(f"{asked.request}: a token that is none")
    found += [f"{request}: was never asked for" for request in came.keys() - {a.request for a in _of(Asked, events)}]
    return found


def requests_end_once(events: Sequence[Event]) -> list[str]:
    """I3."""
    found: list[str] = []
    asked = {event.request: event for event in _of(Asked, events)}
    ends = defaultdict[str, list[Ended]](list)
    for event in events:
        if isinstance(event, Ended):
            ends[event.request].append(event)
        elif isinstance(event, Came) and ends[event.request]:
            found.append(f"{event.request}: tokens after its end")
    for request, begun in asked.items():
        if len(ends[request]) != 1:
            found.append(f"{request}: {len(ends[request])} ends")
        for end in ends[request]:
            if end.status != "OK":
                found.append(f"{request}: ended with {end.status}")
            if end.at_s - begun.at_s > begun.within_s:
                found.append(f"{request}: ended after {end.at_s - begun.at_s:.1f} s of {begun.within_s:g}")
    return found


def nothing_remains(events: Sequence[Event]) -> list[str]:
    """I4."""
    return [f"{left.what}: {left.before} before, {left.after} after" for left in _of(Remains, events)
            if left.after != left.before]  # fmt: skip


def calls_only_rise(events: Sequence[Event]) -> list[str]:
    """I5. A worker that was started anew has seen nothing."""
    found, highest, over = [], defaultdict[tuple[str, int, bytes], int](int), set()
    for event in events:
        if isinstance(event, Accepted | Released):
            key = (event.worker, event.incarnation, event.session_id)
            if isinstance(event, Released):
                over.add(key)
                continue
            if key in over:
                found.append(f"{event.worker}: call {event.number} of a session that has ended")
            if event.number <= highest[key]:
                found.append(f"{event.worker}: call {event.number} after call {highest[key]}")
            highest[key] = max(highest[key], event.number)
    return found


INVARIANTS: dict[str, Callable[[Sequence[Event]], list[str]]] = {
    "I1": offsets_are_contiguous,
    "I2": tokens_are_the_reference,
    "I3": requests_end_once,
    "I4": nothing_remains,
    "I5": calls_only_rise,
}


def _of(kind: type[E], events: Sequence[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def _first_difference(tokens: Sequence[int], output: Sequence[int]) -> int:
    pairs = enumerate(zip(tokens, output, strict=False))
    return next((index for index, (token, right) in pairs if token != right), len(output))
