"""How many tokens to draft, by whom, and whether ahead: what pays, by what was measured.

A round with k draft tokens commits 1 + A_1 + ... + A_k tokens, A_i the chance that the first i are all accepted, and
has a cost; the pace with the most tokens per cost wins, and k = 0, no draft at all, is one of them (goodput: Liu et al.
2024, "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput"). Where the text repeats itself,
its own n-grams may draft instead of the model (tandem/core/lookup.py).

Chosen before a token is drawn, from committed tokens, and from verdicts up to their first rejection only: so the law of
the text does not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

from tandem.core.acceptance import Acceptance
from tandem.core.load import LONGEST_PAUSE, NEEDED, NO_MODEL, PLAIN, Batch, Load, Pace
from tandem.core.lookup import Match, Rehearsal

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_PROBE_LENGTH = 2
_MARGIN = 1.03  # by which a draft must beat what is done without it
_BURST = NEEDED + 1  # rounds of a measurement; the first, whose draft still catches up, is not timed
_HOPELESS = 0.8  # tokens per cost, against plain decoding, below which a draft is seldom tried again


class Paces(Protocol):
    """Gives the pace of each block of one request, in order, and learns from the verdicts."""

    def choose(self) -> Pace:
        """The pace of the next block."""
        ...

    def look_up(self) -> tuple[int, ...]:
        """Draft tokens from the committed text, to be taken for the next block in the model's place; empty: none."""
        ...

    def observe(self, num_drafted: int, num_accepted: int, seconds: float) -> None:
        """What the verdict on the next block in order took and gave."""
        ...

    def close(self) -> None:
        """The request has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """The same pace throughout, as the caller asked."""

    pace: Pace

    def choose(self) -> Pace:
        return self.pace

    def look_up(self) -> tuple[int, ...]:
        return ()

    def observe(self, num_drafted: int, num_accepted: int, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class Adaptive:
    """The pace that pays best, round by round."""

    def __init__(self, batch: Batch, lookaheads: Sequence[bool], tokens: Sequence[int] = ()) -> None:
        """`lookaheads`: the ways to draft that the caller allows, False in turn, True ahead. `tokens`: the prompt,
        which grows by what is committed.
        """
        self._batch = batch
        self._lookaheads = tuple(lookaheads)
        self._acceptance = Acceptance(batch.acceptance)
        self._lookups = [Acceptance(shared) for shared in batch.lookups]
        self._tokens = tokens
        self._rehearsal = Rehearsal(tokens, LENGTHS[-1])
        self._chosen: deque[Pace] = deque()  # not observed yet
        self._looks_up = False  # the last block was looked up
        self._last: tuple[str, int] | None = None  # way and draft tokens of the last round
        self._num_prefills = 0  # at the last round
        batch.num_prefills += 1

    def choose(self) -> Pace:
        load = self._batch.load()
        load.num_rounds += 1
        pace = self._best(load)
        if not load.burst and load.num_rounds >= load.probe_at and load.is_known(NO_MODEL):
            self._begin_burst(load, pace)
        if load.burst:
            probe = load.burst.pop()
            pace = probe if not probe.num_tokens or probe.ahead in self._lookaheads else pace
        elif self._looks_up:
            pace = PLAIN  # the next block will be looked up, too
        self._chosen.append(pace)
        return pace

    def look_up(self) -> tuple[int, ...]:
        decided, match = self._rehearsal.advance()
        for match_len, num_right in decided:
            for acceptance in (self._batch.lookups, self._lookups):
                acceptance[_bits(match_len)].observe(LENGTHS[-1], num_right)
        load = self._batch.load()
        num_tokens = self._num_to_look_up(match, load) if match and not load.burst else 0
        self._looks_up = num_tokens > 0
        if match is None or not num_tokens:
            return ()
        self._chosen[0] = PLAIN  # as far as the model goes
        return match.continuation(self._tokens, num_tokens)

    def observe(self, num_drafted: int, num_accepted: int, seconds: float) -> None:
        """A round is timed if all requests decode as it does, none was prefilled meanwhile, and its draft came."""
        pace, before, batch = self._chosen.popleft(), self._last, self._batch
        if pace.num_tokens and num_drafted:
            self._acceptance.observe(num_drafted, num_accepted)
            batch.acceptance.observe(num_drafted, num_accepted)
        if before is None:
            batch.num_prefills += 1
        way = "without its draft" if pace.num_tokens and not num_drafted else pace.way
        self._last = (way, num_drafted)
        batch.change(before, self._last)
        undisturbed = batch.num_prefills == self._num_prefills and set(batch.ways) == {pace.way}
        if undisturbed and before is not None and before[0] == way:
            batch.load().observe(way, batch.mean_drafted(), seconds)
        self._num_prefills = batch.num_prefills

    def close(self) -> None:
        self._batch.num_prefills += self._last is None
        self._batch.change(self._last, None)
        self._last = None

    def _best(self, load: Load) -> Pace:
        """PLAIN where no draft is known to beat it."""
        best, goodput = self._best_draft(load)
        return best if goodput > _MARGIN else PLAIN

    def _best_draft(self, load: Load) -> tuple[Pace, float]:
        """Of those that are known, and the tokens that it gives per plain round."""
        if not load.is_known(NO_MODEL):
            return PLAIN, 0.0
        known = [ahead for ahead in self._lookaheads if load.is_known(Pace(1, ahead).way)]
        ways = [(ahead, *_best_length(self._acceptance, load, Pace(1, ahead).way)) for ahead in known]
        ahead, length, goodput = max(ways, key=itemgetter(2), default=(False, 0, 0.0))
        return Pace(length, ahead), goodput

    def _num_to_look_up(self, match: Match, load: Load) -> int:
        if not load.is_known(NO_MODEL):
            return 0
        length, goodput = _best_length(self._lookups[_bits(match.length)], load, NO_MODEL)
        return length if goodput > _MARGIN * max(self._best_draft(load)[1], 1.0) else 0

    def _begin_burst(self, load: Load, best: Pace) -> None:
        """A few rounds of every request in the ways that are not known; else in the likeliest rival of what is in use,
        and with the lengths beside the best one. The pauses grow up to a limit.
        """
        num_requests = max(self._batch.ways.total(), 1)
        drafts = [Pace(_PROBE_LENGTH, ahead) for ahead in self._lookaheads]
        unknown = [pace for pace in drafts if not load.is_known(pace.way)]
        rival, goodput = (PLAIN, 1.0) if best.num_tokens else self._best_draft(load)
        probes = unknown or [*_beside(best), Pace(_PROBE_LENGTH, rival.ahead) if rival.num_tokens else rival]
        load.burst = [pace for pace in reversed(probes) for _ in range(_BURST * num_requests)]
        load.pause = min((2 if unknown or goodput > _HOPELESS else 4) * load.pause, LONGEST_PAUSE)
        load.probe_at = load.num_rounds + len(load.burst) + load.pause * num_requests


def _best_length(acceptance: Acceptance, load: Load, way: str) -> tuple[int, float]:
    """The length that gives the most tokens per plain round, and how many."""
    tokens = acceptance.tokens_per_round(LENGTHS[-1])
    goodputs = [tokens[length] / load.cost(way, length) for length in LENGTHS]
    best = max(goodputs)
    return LENGTHS[goodputs.index(best)], best


def _bits(match_len: int) -> int:
    """Matches are told apart by the bits of their length: none, 1, 2 or 3, 4 to 7, 8 and more."""
    return min(match_len.bit_length(), 4)


def _beside(pace: Pace) -> list[Pace]:
    """The next shorter and the next longer draft, drafted in the same way."""
    if not pace.num_tokens:
        return []
    index = LENGTHS.index(pace.num_tokens)
    return [
        Pace(length, pace.ahead) for length in (*LENGTHS[max(index - 1, 0) : index], *LENGTHS[index + 1 : index + 2])
    ]
