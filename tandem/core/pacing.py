"""How many tokens to draft, and whether to draft ahead: what pays, by what was measured.

A round with k draft tokens commits 1 + A_1 + ... + A_k tokens, A_i the chance that the first i are all accepted, and
takes a time that is measured; the pace with the most tokens per second wins, and k = 0, no draft at all, is one of them
(goodput: Liu et al. 2024, "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput").

Chosen before a token is drawn, from verdicts up to their first rejection only: so the law of the text does not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_PROBE_LENGTH = 2
_MEMORY = 0.97  # weight that an observation keeps when the next one comes
_NEEDED = 3  # observations before a kind of pace is judged
_PRIOR_WEIGHT = 4.0  # of the pool's acceptance against a request's own
_MARGIN = 1.03  # by which a draft must beat plain decoding
_BURST = 3  # rounds of a measurement
_FIRST_PAUSE, _LONGEST_PAUSE = 64, 512  # rounds between two measurements of what is not in use


@dataclass(frozen=True, slots=True)
class Pace:
    """`num_tokens` 0: plain decoding."""

    num_tokens: int
    ahead: bool = False

    @property
    def kind(self) -> str:
        return "plain" if not self.num_tokens else "ahead" if self.ahead else "in turn"


PLAIN = Pace(0)


class Paces(Protocol):
    """Gives the pace of each block of one request, in order, and learns from the verdicts."""

    def choose(self) -> Pace:
        """The pace of the next block."""
        ...

    def observe(self, num_drafted: int, num_accepted: int, seconds: float) -> None:
        """What the verdict on the next block in order took and gave."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """The same pace throughout, as the caller asked."""

    pace: Pace

    def choose(self) -> Pace:
        return self.pace

    def observe(self, num_drafted: int, num_accepted: int, seconds: float) -> None:
        pass


class Acceptance:
    """How often draft tokens pass, position by position, counted up to the first rejection."""

    def __init__(self, prior: Acceptance | None = None) -> None:
        self._prior = prior
        self._passed: list[float] = []
        self._tested: list[float] = []

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """One verdict: positions behind the first rejection were not tested."""
        num_tested = min(num_accepted + 1, num_drafted)
        missing = num_tested - len(self._tested)
        self._passed += [0.0] * missing
        self._tested += [0.0] * missing
        for position in range(num_tested):
            self._passed[position] = self._passed[position] * _MEMORY + (position < num_accepted)
            self._tested[position] = self._tested[position] * _MEMORY + 1

    def rate(self, position: int) -> float:
        """The chance that the token at `position` passes, given that those before it did."""
        expected = self._prior.rate(position) if self._prior else 0.5
        if position >= len(self._tested):
            return self.rate(len(self._tested) - 1) if self._tested else expected
        weight = _PRIOR_WEIGHT if self._prior else 1.0
        return (self._passed[position] + weight * expected) / (self._tested[position] + weight)

    def tokens_per_round(self, num_tokens: int) -> float:
        """Tokens that a round with `num_tokens` draft tokens commits on average."""
        total, survival = 1.0, 1.0
        for position in range(num_tokens):
            survival *= self.rate(position)
            total += survival
        return total


@dataclass(slots=True)
class _Line:
    """Seconds of a round by its number of draft tokens: a line fitted by least squares, old rounds weighing less."""

    count: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # weight, k, k^2, s, k s

    def observe(self, num_tokens: int, seconds: float) -> None:
        self.count += 1
        terms = (1.0, num_tokens, num_tokens**2, seconds, num_tokens * seconds)
        self.sums = [_MEMORY * old + new for old, new in zip(self.sums, terms, strict=True)]

    def at(self, num_tokens: int) -> float:
        """Where all rounds had one length, a token more is taken to cost a tenth of a round."""
        weight, k, kk, s, ks = self.sums
        mean_k, mean_s = k / weight, s / weight
        spread = kk / weight - mean_k**2
        slope = (ks / weight - mean_k * mean_s) / spread if spread > 1e-9 else 0.1 * mean_s
        return mean_s + max(slope, 0.0) * (num_tokens - mean_k)


@dataclass(slots=True)
class _Times:
    """Of one load: how long rounds of each kind take, and when to look at the kinds that are not in use."""

    lines: dict[str, _Line] = field(default_factory=dict)
    num_rounds: int = 0
    probe_at: int = _FIRST_PAUSE
    pause: int = _FIRST_PAUSE

    def line(self, kind: str) -> _Line:
        return self.lines.setdefault(kind, _Line())


class Pacing:
    """What the requests of one coordinator have measured together."""

    def __init__(self) -> None:
        self.acceptance = Acceptance()
        self.num_running = 0
        self._times: dict[int, _Times] = {}  # by the bits of the number of running requests

    def times(self) -> _Times:
        """What was measured under the present load."""
        return self._times.setdefault(self.num_running.bit_length(), _Times())


class Adaptive:
    """The pace that pays best, round by round."""

    def __init__(self, pacing: Pacing, lookaheads: Sequence[bool]) -> None:
        """`lookaheads`: the ways to draft that the caller allows, False in turn, True ahead."""
        self._pacing = pacing
        self._acceptance = Acceptance(pacing.acceptance)
        self._lookaheads = tuple(lookaheads)
        self._burst: list[Pace] = []  # rounds of a measurement that is under way
        self._chosen: deque[Pace] = deque()  # not observed yet
        self._last_kind = ""

    def choose(self) -> Pace:
        times = self._pacing.times()
        times.num_rounds += 1
        pace = self._not_judged(times) or self._judged(times)
        self._chosen.append(pace)
        return pace

    def observe(self, num_drafted: int, num_accepted: int, seconds: float) -> None:
        """The first round after another kind is not timed: its draft still catches up. Nor is one without its draft."""
        pace = self._chosen.popleft()
        if num_drafted:
            self._acceptance.observe(num_drafted, num_accepted)
            self._pacing.acceptance.observe(num_drafted, num_accepted)
        if pace.kind == self._last_kind and (num_drafted > 0) == (pace.num_tokens > 0):
            self._pacing.times().line(pace.kind).observe(num_drafted, seconds)
        self._last_kind = pace.kind

    def _not_judged(self, times: _Times) -> Pace | None:
        """A kind of pace that has not been measured often enough to be compared."""
        kinds = (PLAIN, *(Pace(_PROBE_LENGTH, ahead) for ahead in self._lookaheads))
        return next((pace for pace in kinds if times.line(pace.kind).count < _NEEDED), None)

    def _judged(self, times: _Times) -> Pace:
        """The best pace, or one whose measurement is due."""
        best = self._best(times)
        if not self._burst and times.num_rounds >= times.probe_at:
            self._begin_burst(times, best)
        return self._burst.pop(0) if self._burst else best

    def _best(self, times: _Times) -> Pace:
        drafts = [Pace(length, ahead) for ahead in self._lookaheads for length in LENGTHS]
        best = max(drafts, key=lambda pace: self._goodput(pace, times))
        return best if self._goodput(best, times) > _MARGIN * self._goodput(PLAIN, times) else PLAIN

    def _goodput(self, pace: Pace, times: _Times) -> float:
        return self._acceptance.tokens_per_round(pace.num_tokens) / times.line(pace.kind).at(pace.num_tokens)

    def _begin_burst(self, times: _Times, best: Pace) -> None:
        """A few rounds of what is not in use: the likeliest rival, and the lengths beside the best one. The pauses grow
        up to a limit.
        """
        rivals = [PLAIN] if best.num_tokens else [Pace(_PROBE_LENGTH, ahead) for ahead in self._lookaheads]
        rival = max(rivals, key=lambda pace: self._goodput(pace, times))
        self._burst = [pace for pace in (*_beside(best), rival) for _ in range(_BURST)]
        times.pause = min(2 * times.pause, _LONGEST_PAUSE)
        times.probe_at = times.num_rounds + times.pause


def _beside(pace: Pace) -> list[Pace]:
    """The next shorter and the next longer draft, drafted in the same way."""
    if not pace.num_tokens:
        return []
    index = LENGTHS.index(pace.num_tokens)
    return [
        Pace(length, pace.ahead) for length in (*LENGTHS[max(index - 1, 0) : index], *LENGTHS[index + 1 : index + 2])
    ]
