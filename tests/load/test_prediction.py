"""The star formulas of the orchestration bench, against rounds played out one by one."""

from __future__ import annotations

import random

import pytest

from tandem.bench import prediction
from tandem.bench.orchestration import acceptance, steady
from tandem.bench.throughput import Timeline
from tandem.client import SpeculationStats

C, R = 0.1, 0.04
NUM_ROUNDS = 40_000


def v(k: int) -> float:
    return 1 + 0.002 * k


def run_length(rng: random.Random, k: int, alpha: float) -> int:
    """Draft tokens accepted of k."""
    return next((index for index in range(k) if rng.random() >= alpha), k)


def played_in_turn(k: int, alpha: float) -> float:
    rng, tokens, time = random.Random(1), 0, 0.0
    for _ in range(NUM_ROUNDS):
        tokens += run_length(rng, k, alpha) + 1
        time += (k * C + R) + (v(k) + R)
    return tokens / time


def played_pipelined(k0: int, k1: int, alpha: float) -> float:
    """A block that stands is verified at once, while the next is drafted; one that does not is drafted anew."""
    rng, tokens, time, stands = random.Random(1), 0, 0.0, False
    for _ in range(NUM_ROUNDS):
        k = k1 if stands else k0
        time += max(v(k), (k1 + 1) * C) + R if stands else (k * C + R) + (v(k) + R)
        accepted = run_length(rng, k, alpha)
        tokens += accepted + 1
        stands = accepted == k and rng.random() < alpha
    return tokens / time


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_in_turn(k: int, alpha: float) -> None:
    assert prediction.in_turn(k, alpha, v, C, R) == pytest.approx(played_in_turn(k, alpha), rel=0.01)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(("k0", "k1"), [(1, 1), (4, 9), (6, 6), (3, 15)])
def test_pipelined(k0: int, k1: int, alpha: float) -> None:
    assert prediction.pipelined(k0, k1, alpha, v, C, R) == pytest.approx(played_pipelined(k0, k1, alpha), rel=0.015)


def test_no_draft_token_is_plain_decoding_with_a_proposal_for_nothing() -> None:
    assert prediction.in_turn(0, 0.8, v, C, R) == pytest.approx(1 / (1 + 2 * R))
    assert prediction.plain(R) == pytest.approx(1 / (1 + R))


def test_acceptance_counts_positions_up_to_the_first_rejection() -> None:
    """Blocks of 3: one accepted whole, one rejected at the third token, one at the first."""
    stats = SpeculationStats(num_draft_tokens=9, num_accepted_per_position=(2, 2, 1))
    assert acceptance([stats], 3) == pytest.approx(5 / 7)
    assert acceptance([SpeculationStats(num_draft_tokens=3)], 3) == 0.0


def test_the_clock_runs_while_all_are_past_their_first_chunk_and_before_the_tail_of_any() -> None:
    early = Timeline(0.0, [(1.0, 2), (2.0, 3), (3.0, 3), (4.0, 2)])
    late = Timeline(0.0, [(1.5, 1), (2.5, 4), (3.5, 4), (9.0, 1)])
    num_tokens, seconds = steady([early, late], tail=2)
    assert (num_tokens, seconds) == (3 + 4, 2.5 - 1.5)
