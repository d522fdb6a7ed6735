"""What rounds cost under a load, and what each drafter brings: measured by all requests of a coordinator together.

A round's time depends on what the whole batch does: the rows of all requests share the target's steps. So a time is
taken only while all requests decode in the same way, against the mean number of draft tokens of the batch, and a way's
line says what a round costs where everybody decodes so. Costs are in plain rounds, which drift with the contexts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tandem.core.acceptance import Acceptance

NEEDED = 3  # rounds before a cost is believed
_MEMORY = 0.97  # weight that a round keeps when the next one comes
_INHERITED = 0.1  # weight of what was measured under another load
FIRST_PAUSE, LONGEST_PAUSE = 64, 512  # rounds of a request between two measurements of ways not in use
_USUAL_SLOPE = 0.1  # what a draft token adds to a round, in rounds, where the lengths of rounds do not tell
_DOUBT = 1.0  # square of the spread of lengths, in tokens, at which they tell as much as the usual slope
_CHANCES = (0.0, 0.2, 0.4, 0.6, 0.8)  # that a looked up token passes, by the bits of the match's length


@dataclass(frozen=True, slots=True)
class Pace:
    """How the model drafts the next block; `num_tokens` 0: not at all."""

    num_tokens: int
    ahead: bool = False

    @property
    def way(self) -> str:
        return NO_MODEL if not self.num_tokens else "ahead" if self.ahead else "in turn"


NO_MODEL = "plain"  # no draft tokens, or looked up ones
PLAIN = Pace(0)


@dataclass(slots=True)
class Line:
    """The cost of a round by its number of draft tokens: a line fitted by least squares, old rounds weighing less."""

    count: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # weight, k, k^2, cost, k cost

    def observe(self, num_tokens: float, cost: float) -> None:
        self.count += 1
        terms = (1.0, num_tokens, num_tokens**2, cost, num_tokens * cost)
        self.sums = [_MEMORY * old + new for old, new in zip(self.sums, terms, strict=True)]

    def at(self, num_tokens: float) -> float:
        weight, k, kk, s, ks = self.sums
        mean_k, mean_s = k / weight, s / weight
        spread, covariance = kk / weight - mean_k**2, ks / weight - mean_k * mean_s
        slope = (covariance + _DOUBT * _USUAL_SLOPE * mean_s) / (spread + _DOUBT)
        return mean_s + max(slope, 0.0) * (num_tokens - mean_k)

    def faded(self) -> Line:
        """The same line, to be outweighed soon."""
        return Line(min(self.count, NEEDED), [_INHERITED * term for term in self.sums])


@dataclass(slots=True)
class Load:
    """Under a number of running requests: what rounds cost, and when to look at the ways that are not in use."""

    lines: dict[str, Line] = field(default_factory=dict)  # by way; NO_MODEL in seconds, the others in plain rounds
    num_rounds: int = 0  # of all requests
    probe_at: int = 0
    pause: int = FIRST_PAUSE
    burst: list[Pace] = field(default_factory=list)  # rounds of a measurement that is under way

    def is_known(self, way: str) -> bool:
        """Whether a round's cost in this way has been measured."""
        return way in self.lines and self.lines[way].count >= NEEDED

    def cost(self, way: str, num_tokens: int) -> float:
        """Of a round where everybody has `num_tokens` draft tokens, in plain rounds; `way` and NO_MODEL are known."""
        plain = self.lines[NO_MODEL]
        return plain.at(num_tokens) / plain.at(0) if way == NO_MODEL else self.lines[way].at(num_tokens)

    def observe(self, way: str, num_tokens: float, seconds: float) -> None:
        """A round that took `seconds` while all decoded in this way, with `num_tokens` draft tokens on average."""
        if way == NO_MODEL:
            self.lines.setdefault(way, Line()).observe(num_tokens, seconds)
        elif self.is_known(NO_MODEL):
            self.lines.setdefault(way, Line()).observe(num_tokens, seconds / self.lines[NO_MODEL].at(0))

    def faded(self) -> Load:
        """A first guess for another load."""
        return Load({way: line.faded() for way, line in self.lines.items()}, probe_at=FIRST_PAUSE)


class Batch:
    """What the requests of one coordinator do now, and have measured together."""

    def __init__(self) -> None:
        self.num_running = 0
        self.acceptance = Acceptance()  # of the model's tokens
        self.lookups = [Acceptance(chance) for chance in _CHANCES]  # by the bits of the match's length
        self.num_prefills = 0  # begun or ended, ever
        self.ways: Counter[str] = Counter()  # of the last round of each request that leaves the choice to us
        self.num_drafted = 0  # tokens of those rounds
        self._loads: dict[int, Load] = {}  # by the bits of the number of running requests

    def load(self) -> Load:
        """The present one. A new one begins with what is known of the nearest."""
        bits = self.num_running.bit_length()
        if bits not in self._loads:
            nearest = min(self._loads, key=lambda other: abs(other - bits), default=None)
            self._loads[bits] = Load() if nearest is None else self._loads[nearest].faded()
        return self._loads[bits]

    def change(self, before: tuple[str, int] | None, after: tuple[str, int] | None) -> None:
        """A request's last round (way, draft tokens) is another one now; None: it has none yet, or has ended."""
        for last, sign in ((before, -1), (after, 1)):
            if last is not None:
                self.ways[last[0]] += sign
                self.num_drafted += sign * last[1]
        self.ways += Counter()  # forgets ways that nobody is in

    def mean_drafted(self) -> float:
        """Draft tokens of a request's last round, on average."""
        return self.num_drafted / max(self.ways.total(), 1)
