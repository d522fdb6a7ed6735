"""How fast speculation is, from what a round brings and what it costs. Times are in any one unit; rates are per unit.

A_i  chance that the first i draft tokens are all accepted
E    tokens of a verify, 1 + A_1 + ... + A_k
v    time of a verify of k draft tokens
c    time of a draft step
r    what a call costs beyond the devices' work
"""

from __future__ import annotations

from collections.abc import Sequence


def tokens_per_verify(survived: Sequence[float], k: int) -> float:
    """E of k draft tokens (Leviathan et al. 2022, equation 1, with measured A_1, A_2, ... for powers of one rate)."""
    return 1.0 + sum(survived[:k])


def in_turn(tokens: float, verify: float, k: int, draft_step: float, call: float = 0.0) -> float:
    """Draft, then verify: E / (v + k c + 2 r)."""
    return tokens / (verify + k * draft_step + 2 * call)


def hidden(verify: float, k: int, draft_step: float) -> float:
    """Time of a verify beside which a block of k tokens and the guess of the bonus are drafted: max(v, (k + 1) c)."""
    return max(verify, (k + 1) * draft_step)


def renewed(cold: tuple[float, float], warm: tuple[float, float], num_warm: float) -> float:
    """A renewal process: one cold round, then `num_warm` on average whose block had been drafted ahead.

    `cold` and `warm`: tokens and time of a round.
    """
    return (cold[0] + num_warm * warm[0]) / (cold[1] + num_warm * warm[1])
