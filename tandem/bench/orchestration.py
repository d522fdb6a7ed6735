"""What orchestration costs: real services around devices of known speed, held against what devices and ways allow.

Every text is compared with the script. The clock of a cell runs while all of its requests are past their prompts and
none is at its last tokens, where blocks must be short.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter

from tandem.bench import call_cost, prediction
from tandem.bench.orchestration_system import DRAFT, TARGET, System
from tandem.bench.throughput import Timeline
from tandem.client import AsyncClient, Lookahead, SpeculationStats
from tandem.client.request import Options
from tandem.errors import TandemError

ROUND_TRIPS_S = (0.0, 0.0005, 0.002, 0.005)
MANY = 64
LENGTHS = range(1, 16)
_TAIL = 24  # last tokens of an answer that are not timed
_PROBE_TOKENS = 5  # of the proposals that are timed by themselves


@dataclass(frozen=True, slots=True)
class Way:
    """A way of decoding."""

    name: str
    lookahead: Lookahead | None = None


PLAIN, IN_TURN, PIPELINED = Way("plain"), Way("in turn", Lookahead.OFF), Way("pipelined", Lookahead.CHAIN)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one call, beside the device: round trip, messages, event loops. Seconds."""

    round_trip_s: float  # that was added between coordinator and workers
    verify_s: float
    propose_s: float

    @property
    def mean_s(self) -> float:
        return (self.verify_s + self.propose_s) / 2


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of decoding at one block length, one round trip and one number of clients."""

    way: str
    num_draft_tokens: int
    round_trip_s: float
    num_clients: int
    tokens_per_s: float  # of all clients together
    predicted_per_s: float
    acceptance: float  # as it came out; 0 where nothing was drafted
    num_fallbacks: int

    @property
    def achieved(self) -> float:
        """Share of what was predicted."""
        return self.tokens_per_s / self.predicted_per_s


class WrongText(TandemError):
    """A text is not the script's."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    num_requests: int = 6  # of each cell with one client
    num_tokens: int = 256  # of each request
    num_tokens_many: int = 128  # where many ask at once
    num_lengths: int = 3  # block lengths around the one that is predicted to be best


async def measure_round_trip(
    system: System, client: AsyncClient, round_trip_s: float, effort: Effort, show: Callable[[str], None]
) -> tuple[Costs, list[Cell]]:
    """All ways with one client, at one added round trip; drafting ways at several block lengths."""
    system.relays.add_round_trip(round_trip_s)
    where = f"{round_trip_s * 1000:g} ms"
    show(f"{where}: cost of a call")
    costs = await measure_costs(system, round_trip_s)
    cells = []
    for way in (PLAIN, IN_TURN, PIPELINED):
        for length in _lengths(way, costs, 1, effort.num_lengths):
            show(f"{where}: {way.name}, {length} draft tokens")
            timed = [await _ask_all(client, way, length, [number], effort.num_tokens) for number in _numbers(effort)]
            cells.append(_cell(way, length, costs, 1, timed))
    return costs, cells


async def measure_many(
    system: System, client: AsyncClient, costs: Costs, effort: Effort, show: Callable[[str], None]
) -> list[Cell]:
    """All ways with many clients at once, each at the block length that is predicted to be best."""
    system.relays.add_round_trip(costs.round_trip_s)
    cells = []
    for way in (PLAIN, IN_TURN, PIPELINED):
        (length,) = _lengths(way, costs, MANY, 1)
        show(f"{MANY} at once: {way.name}, {length} draft tokens")
        timed = await _ask_all(client, way, length, range(MANY), effort.num_tokens_many)
        cells.append(_cell(way, length, costs, MANY, [timed]))
    return cells


async def measure_costs(system: System, round_trip_s: float) -> Costs:
    """Of calls to the workers as they are reached now, one after another."""
    target, draft = system.relays.addresses
    async with call_cost.connected("target", target, system.config.rpc) as exchange:
        verify_s = await call_cost.verify_seconds(exchange) - TARGET.seconds(1)
    async with call_cost.connected("draft", draft, system.config.rpc) as exchange:
        propose_s = await call_cost.propose_seconds(exchange, _PROBE_TOKENS) - _PROBE_TOKENS * DRAFT.seconds(1)
    return Costs(round_trip_s, verify_s, propose_s)


def predicted(way: Way, length: int, alpha: float, costs: Costs, num_clients: int) -> float:
    """Tokens per second of all clients together, if nothing but devices and calls took time."""
    unit_s = TARGET.seconds(1)
    c, r = DRAFT.seconds(num_clients) / unit_s, costs.mean_s / unit_s

    def v(k: int) -> float:
        return TARGET.seconds(num_clients * (k + 1)) / unit_s

    if way is PLAIN:
        rate = prediction.plain(costs.verify_s / unit_s, v(0))
    elif way is IN_TURN:
        rate = prediction.in_turn(length, alpha, v, c, r)
    else:
        rate = prediction.pipelined(length, length, alpha, v, c, r)
    return num_clients * rate / unit_s


def best(cells: Sequence[Cell], way: Way, round_trip_s: float, num_clients: int = 1) -> Cell:
    """The fastest block length of one way."""
    found = [
        cell
        for cell in cells
        if (cell.way, cell.round_trip_s, cell.num_clients) == (way.name, round_trip_s, num_clients)
    ]
    return max(found, key=lambda cell: cell.tokens_per_s)


def _lengths(way: Way, costs: Costs, num_clients: int, number: int) -> list[int]:
    """Block lengths around the one that is predicted to be best."""
    if way is PLAIN:
        return [0]
    top = max(LENGTHS, key=lambda length: predicted(way, length, DRAFT.agreement, costs, num_clients))
    nearest = sorted(LENGTHS, key=lambda length: (abs(length - top), length))
    return sorted(nearest[:number])


def _numbers(effort: Effort) -> range:
    return range(effort.num_requests)


@dataclass(frozen=True, slots=True)
class _Timed:
    """Requests that ran side by side."""

    num_tokens: int
    seconds: float
    speculation: tuple[SpeculationStats, ...]


def _cell(way: Way, length: int, costs: Costs, num_clients: int, timed: Sequence[_Timed]) -> Cell:
    stats = [each for part in timed for each in part.speculation]
    alpha = acceptance(stats, length) if length else 0.0
    return Cell(
        way=way.name,
        num_draft_tokens=length,
        round_trip_s=costs.round_trip_s,
        num_clients=num_clients,
        tokens_per_s=sum(part.num_tokens for part in timed) / sum(part.seconds for part in timed),
        predicted_per_s=predicted(way, length, alpha, costs, num_clients),
        acceptance=alpha,
        num_fallbacks=sum(sum(each.num_fallbacks.values()) for each in stats),
    )


def acceptance(stats: Sequence[SpeculationStats], length: int) -> float:
    """Accepted draft tokens of those tested, which are those up to the first rejection of each block of `length`."""
    num_blocks = sum(math.ceil(each.num_draft_tokens / length) for each in stats)
    accepted = [sum(counts) for counts in zip(*(_padded(each, length) for each in stats), strict=True)]
    num_tested = num_blocks + sum(accepted[:-1])
    return sum(accepted) / num_tested if num_tested else 0.0


def _padded(stats: SpeculationStats, length: int) -> list[int]:
    counts = list(stats.num_accepted_per_position)
    return counts + [0] * (length - len(counts))


async def _ask_all(client: AsyncClient, way: Way, length: int, numbers: Sequence[int], num_tokens: int) -> _Timed:
    answers = await asyncio.gather(*(_ask(client, way, length, number, num_tokens) for number in numbers))
    tokens, seconds = steady([timeline for timeline, _ in answers])
    return _Timed(tokens, seconds, tuple(stats for _, stats in answers))


async def _ask(
    client: AsyncClient, way: Way, length: int, number: int, num_tokens: int
) -> tuple[Timeline, SpeculationStats]:
    """Raises WrongText."""
    prompt, timeline = prompt_of(number), Timeline(perf_counter())
    tokens: list[int] = []
    options = Options(temperature=0.0, max_tokens=num_tokens, num_draft_tokens=length, lookahead=way.lookahead)
    stats = SpeculationStats()
    async with aclosing(client.stream(token_ids=prompt, **options)) as chunks:
        async for chunk in chunks:
            timeline.note(chunk, perf_counter())
            tokens += chunk.token_ids
            stats = chunk.finish.speculation if chunk.finish else stats
    if tokens != TARGET.continuation(prompt, num_tokens):
        raise WrongText(f"{way.name}, {length} draft tokens: the text of prompt {number} is not the script's")
    return timeline, stats


def prompt_of(number: int) -> list[int]:
    """A prompt of its own for each of many requests."""
    size = TARGET.vocab_size
    return [number // size, number % size, (7 * number + 3) % size]


def steady(timelines: Sequence[Timeline], tail: int = _TAIL) -> tuple[int, float]:
    """Tokens, and the seconds they took, from when all have begun until the first has `tail` tokens left."""
    began_s = max(timeline.arrivals[0][0] for timeline in timelines)
    ended_s = min(_reached(timeline, timeline.num_tokens - tail) for timeline in timelines)
    num_tokens = sum(
        number for timeline in timelines for now_s, number in timeline.arrivals if began_s < now_s <= ended_s
    )
    return num_tokens, ended_s - began_s


def _reached(timeline: Timeline, num_tokens: int) -> float:
    """When the last chunk came with which an answer still had at most `num_tokens`."""
    total, when_s = 0, timeline.began_s
    for now_s, number in timeline.arrivals:
        total += number
        if total > num_tokens:
            break
        when_s = now_s
    return when_s
