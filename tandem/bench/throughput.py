"""How many tokens per second many clients get together, and how long each of them waits: plainly and with drafts.

A number of clients is always busy: whoever has an answer asks the next question. Each way of decoding is measured in
turn at each number of clients, so that both meet the same machine. No prompt meets itself in a prefix cache: every
measurement, and every pass through the prompts, has a salt of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from time import perf_counter

from tandem.client import AsyncClient, Chunk
from tandem.client.request import Options
from tandem.errors import ConfigError

PROMPTS = Path(__file__).with_name("prompts.jsonl")
CONCURRENCIES = (1, 4, 16, 32)
_REQUESTS_PER_CLIENT = 2
_FEWEST_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question."""

    name: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class Way:
    """A way of decoding; `num_draft_tokens` None leaves it to the coordinator."""

    name: str
    num_draft_tokens: int | None


PLAIN = Way("plain", 0)
DRAFTED = Way("drafted", None)


@dataclass(slots=True)
class Timeline:
    """When the tokens of one answer came, in seconds."""

    began_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # time, tokens that came together
    num_verifies: int = 0

    def note(self, chunk: Chunk, now_s: float) -> None:
        """Counts a chunk that came at `now_s`."""
        if chunk.token_ids:
            self.arrivals.append((now_s, len(chunk.token_ids)))
        if chunk.finish is not None:
            self.num_verifies = chunk.finish.speculation.num_verifies

    @property
    def num_tokens(self) -> int:
        return sum(number for _, number in self.arrivals)

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0][0] - self.began_s if self.arrivals else math.inf

    @property
    def token_s(self) -> float | None:
        """Mean time of a token after the first chunk; None where no other came."""
        num_later = self.num_tokens - self.arrivals[0][1] if self.arrivals else 0
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / num_later if num_later else None


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of decoding at one number of clients. Times in seconds, over the requests of the measurement."""

    way: str
    concurrency: int
    num_requests: int
    num_tokens: int
    tokens_per_s: float
    tokens_per_verify: float
    first_token_p50_s: float
    first_token_p99_s: float
    token_p50_s: float
    token_p99_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured."""

    model: str
    version: str
    max_tokens: int
    cells: tuple[Cell, ...]

    def gain(self, cell: Cell) -> float | None:
        """Its tokens per second against those of one plain client."""
        alone = next((other for other in self.cells if other.way == PLAIN.name and other.concurrency == 1), None)
        return cell.tokens_per_s / alone.tokens_per_s if alone else None


def load_prompts(path: Path) -> list[Prompt]:
    """The first turn of each line. Raises ConfigError naming file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    prompts = [_prompt(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ConfigError(f"{path}: no prompts")
    return prompts


def _prompt(where: str, line: str) -> Prompt:
    try:
        fields = json.loads(line)
        return Prompt(str(fields["id"]), str(fields["category"]), str(fields["turns"][0]))
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{where}: not an object with id, category and turns") from error


async def measure(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    concurrencies: Iterable[int],
    max_tokens: int,
    show: Callable[[str], None] = lambda what: None,
) -> Report:
    """Measures plain decoding, and decoding with drafts if a draft worker is there. Raises ClientError."""
    status = await client.status()
    has_draft = any(worker.role == "draft" and worker.ready for worker in status.workers)
    ways = (PLAIN, DRAFTED) if has_draft else (PLAIN,)
    for way in ways:
        show(f"warming up, {way.name}")
        await _measure_cell(client, prompts[:1], way, 1, max_tokens)
    cells = []
    for concurrency in concurrencies:
        for way in ways:
            show(f"{concurrency} at once, {way.name}")
            cells.append(await _measure_cell(client, spread(prompts), way, concurrency, max_tokens))
    return Report(status.model, status.version, max_tokens, tuple(cells))


def spread(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Category by category in turn, so that any number of them from the start is a mixture."""
    ranks: dict[str, Iterator[int]] = {}
    ranked = [(next(ranks.setdefault(prompt.category, count())), prompt) for prompt in prompts]
    return [prompt for _, prompt in sorted(ranked, key=lambda pair: pair[0])]


async def _measure_cell(
    client: AsyncClient, prompts: Sequence[Prompt], way: Way, concurrency: int, max_tokens: int
) -> Cell:
    num_requests = max(_FEWEST_REQUESTS, _REQUESTS_PER_CLIENT * concurrency) if len(prompts) > 1 else 1
    questions = islice(_questions(prompts), num_requests)
    timelines: list[Timeline] = []

    async def keep_asking() -> None:
        for prompt, salt in questions:
            timelines.append(await _ask(client, prompt, salt, way, max_tokens))

    began_s = perf_counter()
    await asyncio.gather(*(keep_asking() for _ in range(concurrency)))
    return summarise(way, concurrency, timelines, perf_counter() - began_s)


def _questions(prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, str]]:
    """Round and round, with another salt each time."""
    while True:
        salt = uuid.uuid4().hex
        yield from ((prompt, salt) for prompt in prompts)


async def _ask(client: AsyncClient, prompt: Prompt, salt: str, way: Way, max_tokens: int) -> Timeline:
    options = Options(
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=True,
        num_draft_tokens=way.num_draft_tokens,
        cache_salt=salt,
    )
    timeline = Timeline(perf_counter())
    messages = [{"role": "user", "content": prompt.text}]
    async with aclosing(client.stream(messages=messages, **options)) as chunks:
        async for chunk in chunks:
            timeline.note(chunk, perf_counter())
    return timeline


def summarise(way: Way, concurrency: int, timelines: Sequence[Timeline], seconds: float) -> Cell:
    """What the answers of one measurement come to."""
    num_tokens = sum(timeline.num_tokens for timeline in timelines)
    num_verifies = sum(timeline.num_verifies for timeline in timelines)
    first = [timeline.first_token_s for timeline in timelines]
    each = [token_s for timeline in timelines if (token_s := timeline.token_s) is not None]
    return Cell(
        way=way.name,
        concurrency=concurrency,
        num_requests=len(timelines),
        num_tokens=num_tokens,
        tokens_per_s=num_tokens / seconds,
        tokens_per_verify=num_tokens / num_verifies if num_verifies else 0.0,
        first_token_p50_s=percentile(first, 0.5),
        first_token_p99_s=percentile(first, 0.99),
        token_p50_s=percentile(each, 0.5),
        token_p99_s=percentile(each, 0.99),
    )


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; 0 where there are none."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1] if ordered else 0.0
