"""The pace of a request: what a worthless draft costs, what a good one brings, and what the choice may know.

Rounds are simulated: acceptance by a coin per position, times by the formulas of two devices and a round trip.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, replace

import pytest

from tandem.core.acceptance import Acceptance
from tandem.core.load import PLAIN, Batch, Pace
from tandem.core.pacing import LENGTHS, Adaptive, Paces, Steady

WAYS = (False, True)
FIXED = [PLAIN, *(Pace(length, ahead) for ahead in WAYS for length in LENGTHS)]


@dataclass(frozen=True)
class World:
    """Times in plain steps."""

    alpha: float  # chance that a draft token passes, given those before it
    c: float = 0.1  # a draft step
    slope: float = 0.03  # of a verify, per draft token
    trip: float = 0.05  # round trip and call
    noise: float = 0.05  # relative, of every time

    def verify_s(self, num_tokens: int, rng: random.Random) -> float:
        return self._noisy(1 + self.slope * num_tokens + self.trip, rng)

    def draft_s(self, num_tokens: int, rng: random.Random) -> float:
        return self._noisy(self.c * num_tokens + self.trip, rng) if num_tokens else 0.0

    def _noisy(self, seconds: float, rng: random.Random) -> float:
        return seconds * (1 + self.noise * rng.uniform(-1, 1))


class Run:
    """One long generation, in the order of events of coordinator/decode.py."""

    def __init__(self, paces: Paces, world: World, seed: int = 0) -> None:
        self.world, self.paces, self.rng = world, paces, random.Random(seed)
        self.tokens, self.seconds = 0, 0.0
        self.chosen: list[Pace] = []
        self._lap_began = 0.0
        pace = self._choose()
        self._block_len = 0 if pace.ahead else self._draft(pace)

    def rounds(self, count: int) -> float:
        """Goodput of the next `count` rounds."""
        tokens, seconds = self.tokens, self.seconds
        for _ in range(count):
            self._round()
        return (self.tokens - tokens) / (self.seconds - seconds)

    def _round(self) -> None:
        pace, world, begun = self._choose(), self.world, self.seconds
        self.seconds += world.verify_s(self._block_len, self.rng)
        passed = [self.rng.random() < world.alpha for _ in range(self._block_len)]
        num_accepted = next((index for index, passes in enumerate(passed) if not passes), self._block_len)
        self.tokens += num_accepted + 1
        self.paces.observe(self._block_len, num_accepted, self.seconds - self._lap_began)
        self._lap_began = self.seconds
        self._block_len = self._next_block(pace, num_accepted == self._block_len, begun)

    def _next_block(self, pace: Pace, stands: bool, begun: float) -> int:
        if not pace.ahead or not stands:
            return self._draft(pace)
        guess_came = begun + self.world.draft_s(1, self.rng)
        if self.rng.random() < self.world.alpha:
            self.seconds = max(self.seconds, begun + self.world.draft_s(pace.num_tokens + 1, self.rng))
            return pace.num_tokens
        self.seconds = max(self.seconds, guess_came)
        return self._draft(pace)

    def _draft(self, pace: Pace) -> int:
        self.seconds += self.world.draft_s(pace.num_tokens, self.rng)
        return pace.num_tokens

    def _choose(self) -> Pace:
        self.chosen.append(self.paces.choose())
        return self.chosen[-1]


def adaptive(world: World, batch: Batch | None = None, seed: int = 0) -> Run:
    return Run(Adaptive(batch or Batch(), WAYS), world, seed)


@functools.cache
def best_fixed(world: World) -> float:
    return max(Run(Steady(pace), world, seed=9).rounds(2_000) for pace in FIXED)


@pytest.mark.parametrize("c", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.02])
def test_a_worthless_draft_ends_at_plain_and_costs_at_most_4_percent(alpha: float, c: float) -> None:
    world = World(alpha, c)
    plain = Run(Steady(PLAIN), world, seed=1).rounds(2_000)
    run = adaptive(world)
    assert run.rounds(2_000) >= 0.96 * plain
    assert sum(pace == PLAIN for pace in run.chosen[-500:]) > 480


GOOD = [
    World(0.5, 0.05),
    World(0.7, 0.2, 0.0),
    World(0.7, 0.05, 0.1),
    *(World(0.9, c, s) for c, s in ((0.05, 0.1), (0.2, 0.0))),
]


@pytest.mark.parametrize("world", GOOD, ids=lambda world: f"{world.alpha} {world.c} {world.slope}")
def test_a_good_draft_is_used_as_well_as_the_best_fixed_pace_would_use_it(world: World) -> None:
    run = adaptive(world)
    run.rounds(300)
    assert run.rounds(4_000) >= 0.95 * best_fixed(world)


@pytest.mark.parametrize(("before", "after"), [(0.05, 0.85), (0.85, 0.05), (0.4, 0.9)])
def test_it_follows_a_change_of_acceptance(before: float, after: float) -> None:
    run = adaptive(World(before))
    run.rounds(1_000)
    run.world = World(after)
    run.rounds(700)
    assert run.rounds(2_000) >= 0.93 * best_fixed(run.world)


def test_it_follows_a_change_of_load() -> None:
    """Under load a verify's rows have a price; each load is measured for itself, and remembered."""
    idle, batch = World(0.7, slope=0.0), Batch()
    batch.num_running = 1
    run = adaptive(idle, batch)
    run.rounds(500)
    batch.num_running, run.world = 32, replace(idle, slope=0.7)
    run.rounds(500)
    loaded = run.rounds(2_000)
    assert loaded >= 0.95 * best_fixed(run.world)
    batch.num_running, run.world = 1, idle
    run.rounds(10)
    assert run.rounds(2_000) >= 0.95 * best_fixed(idle)


def test_acceptance_is_estimated_without_bias_from_positions_that_were_tested() -> None:
    """Positions behind the first rejection are neither passed nor failed: to count them as failed would halve these."""
    truth, rng, num_rounds = (0.8, 0.6, 0.7, 0.5), random.Random(1), 20_000
    acceptance, sums = Acceptance(), [0.0] * 4
    for _ in range(num_rounds):
        passed = [rng.random() < chance for chance in truth]
        acceptance.observe(4, passed.index(False) if False in passed else 4)
        sums = [total + rate for total, rate in zip(sums, acceptance.rates(4), strict=True)]
    means = [total / num_rounds for total in sums]
    assert all(abs(mean - chance) < 0.025 for mean, chance in zip(means, truth, strict=True)), means
    expected = 1 + 0.8 + 0.8 * 0.6 + 0.8 * 0.6 * 0.7 + 0.8 * 0.6 * 0.7 * 0.5
    long_run = Acceptance()
    long_run._passed, long_run._tested = [1000 * mean for mean in truth], [1000.0] * 4
    assert abs(long_run.tokens_per_round(4)[4] - expected) < 0.01


def test_nothing_behind_the_first_rejection_is_known() -> None:
    """A verdict that stops at a rejection says the same whether two or sixteen more tokens had been drafted."""
    rng = random.Random(2)
    cut, whole = Acceptance(), Acceptance()
    for _ in range(500):
        num_drafted = rng.choice(LENGTHS)
        num_accepted = rng.randrange(num_drafted + 1)
        whole.observe(num_drafted, num_accepted)
        cut.observe(min(num_drafted, num_accepted + 1), num_accepted)
        assert whole.rates(17) == cut.rates(17)


def test_the_same_verdicts_and_times_give_the_same_paces() -> None:
    """Pure: no clock, no random state. What is chosen now does not depend on a verdict that is still out."""
    world = World(0.7)
    assert adaptive(world, seed=3).rounds(700) == adaptive(world, seed=3).rounds(700)
    first, second = Adaptive(Batch(), WAYS), Adaptive(Batch(), WAYS)
    for num_accepted in [1, 2, 0, 2] * 20:
        assert first.choose() == second.choose()
        first.observe(2, num_accepted, 1.0)
        second.observe(2, num_accepted, 1.0)


def test_requests_that_end_with_their_first_verdict_measure_nothing_and_break_nothing() -> None:
    """They choose and never observe: a measurement may fall due before anything has been measured."""
    batch = Batch()
    for _ in range(200):
        paces = Adaptive(batch, WAYS)
        assert (paces.choose(), paces.choose()) == (PLAIN, PLAIN)
    run = adaptive(World(0.8), batch)
    run.rounds(300)
    assert run.rounds(500) > 1.2


@pytest.mark.parametrize("ahead", WAYS)
def test_only_ways_that_the_caller_allows_are_tried(ahead: bool) -> None:
    run = Run(Adaptive(Batch(), (ahead,)), World(0.8))
    run.rounds(1_000)
    assert {pace.ahead for pace in run.chosen if pace.num_tokens} == {ahead}


def test_a_draft_that_does_not_come_is_not_taken_for_a_fast_round() -> None:
    """Rounds whose draft failed are plain rounds in time, whatever was wanted."""
    batch = Batch()
    paces = Adaptive(batch, WAYS)
    for _ in range(300):
        pace = paces.choose()
        paces.observe(0, 0, 1.0 if pace == PLAIN else 0.01)
    assert set(batch.load().lines) == {PLAIN.way}


@dataclass(frozen=True)
class Shared:
    """A batch on one device: all requests wait for the same step, whose time is that of all their rows, in turn."""

    alpha: float
    c: float  # a draft step of the whole batch
    slope: float  # of a step, per draft token of a request, on average over the batch


def batched(paces: list[Paces], world: Shared, num_rounds: int, seed: int = 0) -> float:
    """Tokens per plain round of the batch and request."""
    rng, tokens, seconds = random.Random(seed), 0, 0.0
    blocks = [pace.choose().num_tokens for pace in paces]
    for _ in range(num_rounds):
        following = [pace.choose().num_tokens for pace in paces]
        lap = 1 + world.slope * sum(blocks) / len(blocks) + world.c * max(blocks) + 0.02 * rng.random()
        seconds += lap
        for each, num_drafted in zip(paces, blocks, strict=True):
            num_accepted = next((n for n in range(num_drafted) if rng.random() >= world.alpha), num_drafted)
            tokens += num_accepted + 1
            each.observe(num_drafted, num_accepted, lap)
        blocks = following
    return tokens / seconds / len(paces)


@pytest.mark.parametrize("num_requests", [1, 4, 16, 32])
@pytest.mark.parametrize("world", [Shared(0.3, 0.1, 0.1), Shared(0.3, 0.1, 0.5), Shared(0.0, 0.05, 0.02)])
def test_a_batch_is_not_slower_than_plain_where_each_request_s_tokens_slow_all(
    world: Shared, num_requests: int
) -> None:
    """A request that drafts hardly slows itself down: judged by its own rounds, drafting always seems to pay."""
    batch = Batch()
    batch.num_running = num_requests
    paces: list[Paces] = [Adaptive(batch, (False,)) for _ in range(num_requests)]
    batched(paces, world, 100)
    assert batched(paces, world, 1_000, seed=1) >= 0.97


@pytest.mark.parametrize("num_requests", [1, 4, 16])
def test_a_batch_drafts_where_that_pays_for_all(num_requests: int) -> None:
    world, batch = Shared(0.8, 0.02, 0.05), Batch()
    batch.num_running = num_requests
    paces: list[Paces] = [Adaptive(batch, (False,)) for _ in range(num_requests)]
    batched(paces, world, 100)
    fixed = [batched([Steady(Pace(k))] * num_requests, world, 1_000, seed=1) for k in LENGTHS]
    assert batched(paces, world, 1_000, seed=1) >= 0.9 * max(fixed)


def test_what_was_found_under_one_load_is_the_first_guess_under_another() -> None:
    """Not measured again from nothing at every number of requests: that costs each of them a few rounds."""
    batch = Batch()
    batch.num_running = 1
    batched([Adaptive(batch, (False,))], Shared(0.8, 0.02, 0.05), 200)
    batch.num_running = 2
    newcomer = Adaptive(batch, (False,))
    assert newcomer.choose().num_tokens > 1


def test_rounds_in_which_a_prompt_is_prefilled_are_no_measure_of_decoding() -> None:
    batch = Batch()
    first = Adaptive(batch, (False,))
    for _ in range(6):
        first.choose()
        first.observe(0, 0, 1.0)
    newcomer = Adaptive(batch, (False,))
    first.choose(), newcomer.choose()
    first.observe(0, 0, 50.0)
    newcomer.observe(0, 0, 50.0)
    first.choose()
    first.observe(0, 0, 50.0)  # the newcomer's prefill ended within it
    assert batch.load().lines[PLAIN.way].at(0) == pytest.approx(1.0)


def test_requests_that_have_ended_are_no_part_of_the_batch() -> None:
    batch = Batch()
    for num_rounds in range(4):
        ended = Adaptive(batch, WAYS)
        for _ in range(num_rounds):
            ended.choose()
            ended.observe(0, 0, 1.0)
        ended.close()
        ended.close()
    assert not batch.ways and batch.num_drafted == 0


def repeating(rng: random.Random, num_tokens: int) -> list[int]:
    """A phrase again and again."""
    phrase = [rng.randrange(50) for _ in range(9)]
    return [phrase[index % len(phrase)] for index in range(num_tokens)]


def looked_up_run(text: list[int], slope: float) -> tuple[float, int]:
    """Tokens per cost over `text` where a verify of k draft tokens costs 1 + slope k; and how many were looked up."""
    batch, tokens = Batch(), list(text[:20])
    paces = Adaptive(batch, (), tokens)
    cost, num_looked_up = 0.0, 0
    block: tuple[int, ...] = ()
    paces.choose()
    while len(tokens) < len(text) - 20:
        paces.choose()
        here = len(tokens)
        num_accepted = next((n for n, token in enumerate(block) if token != text[here + n]), len(block))
        tokens += text[here : here + num_accepted + 1]
        lap = 1 + slope * len(block)
        cost += lap
        paces.observe(len(block), num_accepted, lap)
        num_looked_up += len(block)
        block = paces.look_up()
    return (len(tokens) - 20) / cost, num_looked_up


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.3])
def test_a_text_that_repeats_itself_is_looked_up_and_one_that_does_not_costs_nothing(slope: float) -> None:
    """No round is spent to find out: what a lookup would have brought is known from the committed text."""
    rng = random.Random(3)
    goodput, _ = looked_up_run(repeating(rng, 600), slope)
    assert goodput > 0.8 * 17 / (1 + 16 * slope)
    goodput, _ = looked_up_run([rng.randrange(50) for _ in range(600)], slope)
    assert goodput > 0.96
