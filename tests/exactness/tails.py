"""Tests of fit at one fixed level, and the failure that all checks of this folder raise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ALPHA = 1e-6  # of every single check; seeds are fixed, so a pass stays a pass
_LEAST_EXPECTED = 5.0  # cells with less are pooled


class LawBroken(AssertionError):
    """A sample, or an algebraic sum, does not follow the law it must follow."""


def require(condition: object, message: str) -> None:
    """Raises LawBroken with `message` unless `condition` is true."""
    if not condition:
        raise LawBroken(message)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(chi-square with `degrees` degrees of freedom > statistic)."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def normal_tail(z: float) -> float:
    """P(|standard normal| > |z|)."""
    return math.erfc(abs(z) / math.sqrt(2))


def kolmogorov_tail(distance: float, n: int) -> float:
    """P(Kolmogorov-Smirnov distance of n uniforms > distance), by Stephens' correction of the limit law."""
    x = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    return min(1.0, 2 * sum((-1) ** (j - 1) * math.exp(-2 * j * j * x * x) for j in range(1, 101)))


def p_value(counts: Tensor, law: Tensor) -> float:
    """Of `counts` under the probabilities `law`; 0 where something impossible came. Cells of any shape."""
    counts, law = counts.double().flatten(), law.double().flatten()
    if bool((counts[law == 0] > 0).any()):
        return 0.0
    expected = law * counts.sum()
    small = expected < _LEAST_EXPECTED
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    counts = torch.cat([counts[~small], counts[small].sum()[None]])
    if expected[-1] < _LEAST_EXPECTED:  # too little even in one pool: the last cell takes it
        expected = torch.cat([expected[:-2], expected[-2:].sum()[None]])
        counts = torch.cat([counts[:-2], counts[-2:].sum()[None]])
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return chi_square_tail(statistic, len(counts) - 1) if len(counts) > 1 else 1.0


def require_law(counts: Tensor, law: Tensor, what: str, num_tests: int = 1) -> None:
    """Chi-square at ALPHA, shared among `num_tests`."""
    p = p_value(counts, law)
    require(p >= ALPHA / num_tests, f"{what}: chi-square gives {p:.1e} for {counts.tolist()}")


def require_mean(hits: Tensor, chances: Tensor, what: str) -> None:
    """Independent (or martingale) yes/no events, each with a chance of its own: their sum is what it must be."""
    hits, chances = hits.double(), chances.double()
    spread = float((chances * (1 - chances)).sum().sqrt())
    off = float((hits - chances).sum())
    z = off / spread if spread > 1e-3 else (0.0 if abs(off) < 1e-3 else math.inf)
    require(
        normal_tail(z) >= ALPHA, f"{what}: {float(hits.mean()):.4f}, must be {float(chances.mean()):.4f} (z = {z:.1f})"
    )


def require_uniform(values: Tensor, what: str, num_bins: int = 20) -> None:
    """Kolmogorov-Smirnov and chi-square on [0, 1), each at half of ALPHA."""
    n = len(values)
    ordered = values.sort().values
    grid = torch.arange(n, dtype=torch.float64)
    distance = float(torch.maximum((grid + 1) / n - ordered, ordered - grid / n).max())
    require(kolmogorov_tail(distance, n) >= ALPHA / 2, f"{what}: Kolmogorov-Smirnov distance {distance:.5f}")
    counts = torch.bincount((values * num_bins).long().clamp(max=num_bins - 1), minlength=num_bins)
    require_law(counts, torch.full((num_bins,), 1 / num_bins), what, num_tests=2)


def require_uncorrelated(left: Tensor, right: Tensor, what: str) -> None:
    """Correlation of two samples of uniforms: sqrt(n) r is standard normal where they are independent."""
    pair = torch.stack([left, right]).double()
    r = float(torch.corrcoef(pair)[0, 1])
    z = r * math.sqrt(pair.shape[1])
    require(normal_tail(z) >= ALPHA, f"{what}: correlation {r:.4f} of {pair.shape[1]} pairs")
