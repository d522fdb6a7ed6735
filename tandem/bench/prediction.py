"""How fast decoding would be if only devices and ways took time.

The unit of time is one forward pass of the target over one row; rates are tokens per unit, as a client sees them.

k      draft tokens of a block; k0 of one that is drafted in turn, k1 of one that is drafted ahead
alpha  chance that a draft token is accepted, given that those before it were
v(k)   time of a verify of k draft tokens, which is a forward pass of k + 1 rows
c      time of a draft step
r      round trip and cost of one call

An ahead block of k1 + 1 tokens stands if the whole block before it was accepted and its first token is the bonus, which
the draft guesses as well as any token: h(k) = alpha^(k + 1).
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.core import speedup

VerifyTime = Callable[[int], float]


def tokens_per_verify(k: int, alpha: float) -> float:
    """E(k) = 1 + alpha + ... + alpha^k (Leviathan et al. 2022, equation 1)."""
    return speedup.tokens_per_verify([alpha**i for i in range(1, k + 1)], k)


def hit_rate(k: int, alpha: float) -> float:
    """h(k): the chance that what was drafted ahead, behind a block of k, stands."""
    return float(alpha ** (k + 1))


def plain(r: float, v0: float = 1.0) -> float:
    """One token a call: 1 / (v(0) + r). v(0) is above 1 where many share a step."""
    return 1 / (v0 + r)


def in_turn(k: int, alpha: float, v: VerifyTime, c: float, r: float) -> float:
    """Draft, then verify: E(k) / (v + kc + 2r)."""
    return speedup.in_turn(tokens_per_verify(k, alpha), v(k), k, c, r)


def pipelined(k0: int, k1: int, alpha: float, v: VerifyTime, c: float, r: float) -> float:
    """A renewal process: a block in turn, then rho blocks on average that were drafted while another was verified.

    [E(k0) + rho E(k1)] / [v + k0 c + 2r + rho (max(v, (k1 + 1)c) + r)], rho = h(k0) / (1 - h(k1)).
    """
    rho = hit_rate(k0, alpha) / (1 - hit_rate(k1, alpha))
    cold = tokens_per_verify(k0, alpha), v(k0) + k0 * c + 2 * r
    warm = tokens_per_verify(k1, alpha), speedup.hidden(v(k1), k1, c) + r
    return speedup.renewed(cold, warm, rho)
