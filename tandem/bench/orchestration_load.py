"""A coordinator under load: a thousand streams at once, and ten times the requests that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

from tandem.bench.orchestration import PIPELINED, PLAIN, Way, WrongText, prompt_of
from tandem.bench.orchestration_system import SERVICES, TARGET, System
from tandem.bench.throughput import percentile
from tandem.client import AsyncClient, Lookahead, Overloaded, Retry
from tandem.client.request import Options

NUM_STREAMS = 1000
TIMES_TOO_MUCH = 10
_STREAM_TOKENS = 48
_STREAM_LENGTH = 4  # draft tokens of a block
_LOAD_TOKENS = 32
_PAUSE_S = 1.0  # of a client that is refused without being told for how long


@dataclass(frozen=True, slots=True)
class Streams:
    """Many streams on one coordinator. Times in seconds."""

    way: str
    num_streams: int
    tokens_per_s: float
    cpu_per_token_s: dict[str, float]  # by service
    first_token_p99_s: float
    gap_p50_s: float  # between two chunks of a stream
    gap_p99_s: float
    step_s: float  # mean of the target's steps meanwhile
    memory_bytes: float  # of the coordinator, at the end

    @property
    def added_p99_s(self) -> float:
        """Beside the target's step."""
        return self.gap_p99_s - self.step_s


@dataclass(frozen=True, slots=True)
class Load:
    """A number of clients that ask again as soon as they are answered, for a while."""

    num_clients: int
    num_finished: int
    num_refused: int
    finished_tokens_per_s: float  # of requests that ended well
    memory_bytes: dict[str, float]  # by service, at the end
    growth: dict[str, float]  # of memory, from the middle to the end


async def measure_streams(system: System, client: AsyncClient, way: Way, num_streams: int = NUM_STREAMS) -> Streams:
    """All streams begin at once; each text is compared with the script. Raises WrongText."""
    await _read(client, way, 0)
    before = {service: system.metrics(service) for service in SERVICES}
    began_s = perf_counter()
    arrivals = await asyncio.gather(*(_read(client, way, number) for number in range(num_streams)))
    ended_s = perf_counter()
    after = {service: system.metrics(service) for service in SERVICES}
    num_tokens = num_streams * _STREAM_TOKENS
    gaps = [later - earlier for times in arrivals for earlier, later in pairwise(times)]

    def spent(service: str, name: str) -> float:
        return after[service][name] - before[service][name]

    return Streams(
        way=way.name,
        num_streams=num_streams,
        tokens_per_s=num_tokens / (ended_s - began_s),
        cpu_per_token_s={service: spent(service, "process_cpu_seconds_total") / num_tokens for service in SERVICES},
        first_token_p99_s=percentile((times[0] - began_s for times in arrivals), 0.99),
        gap_p50_s=percentile(gaps, 0.5),
        gap_p99_s=percentile(gaps, 0.99),
        step_s=spent("target", "tandem_target_busy_seconds_total") / spent("target", "tandem_target_steps_total"),
        memory_bytes=after["coordinator"]["process_resident_memory_bytes"],
    )


async def _read(client: AsyncClient, way: Way, number: int) -> list[float]:
    """When the chunks of one stream came."""
    length = 0 if way is PLAIN else _STREAM_LENGTH
    prompt = prompt_of(number)
    times: list[float] = []
    tokens: list[int] = []
    options = Options(temperature=0.0, max_tokens=_STREAM_TOKENS, num_draft_tokens=length, lookahead=way.lookahead)
    async with aclosing(client.stream(token_ids=prompt, **options)) as chunks:
        async for chunk in chunks:
            times.append(perf_counter())
            tokens += chunk.token_ids
    if tokens != TARGET.continuation(prompt, _STREAM_TOKENS):
        raise WrongText(f"stream {number}: not the script's text")
    return times


async def measure_overload(system: System, seconds: float) -> tuple[Load, Load]:
    """As many clients as requests may run, then ten times as many."""
    capacity = system.config.coordinator.max_running
    return (
        await _measure_load(system, capacity, seconds),
        await _measure_load(system, TIMES_TOO_MUCH * capacity, seconds),
    )


@dataclass(slots=True)
class _Count:
    until_s: float
    num_finished: int = 0
    num_refused: int = 0


async def _measure_load(system: System, num_clients: int, seconds: float) -> Load:
    async with AsyncClient(system.address, retry=Retry(max_attempts=1)) as client:
        count = _Count(perf_counter() + seconds)
        asking = asyncio.gather(*(_keep_asking(client, number, count) for number in range(num_clients)))
        await asyncio.sleep(seconds / 2)
        middle = _memory(system)
        await asyncio.sleep(seconds / 2)
        end = _memory(system)
        await asking
    return Load(
        num_clients=num_clients,
        num_finished=count.num_finished,
        num_refused=count.num_refused,
        finished_tokens_per_s=count.num_finished * _LOAD_TOKENS / seconds,
        memory_bytes=end,
        growth={service: end[service] / middle[service] - 1 for service in SERVICES},
    )


def _memory(system: System) -> dict[str, float]:
    return {service: system.metrics(service)["process_resident_memory_bytes"] for service in SERVICES}


async def _keep_asking(client: AsyncClient, number: int, count: _Count) -> None:
    options = Options(
        temperature=0.0, max_tokens=_LOAD_TOKENS, num_draft_tokens=_STREAM_LENGTH, lookahead=Lookahead.CHAIN
    )
    while perf_counter() < count.until_s:
        try:
            await client.generate(token_ids=prompt_of(number), **options)
            count.num_finished += perf_counter() < count.until_s
        except Overloaded as error:
            count.num_refused += 1
            await asyncio.sleep(error.retry_after_s or _PAUSE_S)


STREAM_WAYS: Sequence[Way] = (PLAIN, PIPELINED)
