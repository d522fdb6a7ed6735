"""What a draft is worth: expected speed over plain decoding, from acceptance and cost.

E(k) = 1 + A_1 + ... + A_k tokens come of a verify of k draft tokens, where A_j is the chance that the first j are
accepted (Leviathan et al. 2022, with measured survival in place of powers of one rate).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core import speedup
from tandem.distill.acceptance import Acceptance, survival


@dataclass(frozen=True, slots=True)
class Costs:
    """In steps of the target, one row each."""

    draft_step: float  # c
    verify: tuple[float, ...]  # of 1, 2, ... draft tokens; k of them are k + 1 rows


def tokens_per_verify(by_position: Sequence[float], k: int) -> float:
    return speedup.tokens_per_verify(survival(tuple(by_position[:k])), k)


def shared_cores(by_position: Sequence[float], costs: Costs, k: int) -> float:
    """Draft and target on the same cores, one after the other."""
    return speedup.in_turn(tokens_per_verify(by_position, k), costs.verify[k - 1], k, costs.draft_step)


def two_devices(by_position: Sequence[float], costs: Costs, k: int) -> float:
    """A bound: the next block is drafted during the verify, and always stands."""
    return tokens_per_verify(by_position, k) / speedup.hidden(costs.verify[k - 1], k, costs.draft_step)


def best_shared(acceptance: Acceptance, costs: Costs) -> float:
    """On shared cores, greedy, with the best number of draft tokens; 1 where none is best."""
    return max(1.0, *(shared_cores(acceptance.greedy, costs, k) for k in range(1, len(costs.verify) + 1)))
