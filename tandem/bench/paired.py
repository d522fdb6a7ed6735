"""Ratios of things that were measured in turn on the same question, and how sure their median is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 4000
_OUTSIDE = 5.0  # percent of the medians that the interval leaves out
_SEED = 0  # the same figures give the same interval


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and where it lies in 95 of 100 resamples of the questions."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def median_ratio(seconds: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Of baseline / seconds, question by question: above 1 is faster. At least one question is needed."""
    ratios = np.asarray(baseline) / np.asarray(seconds)
    samples = np.random.default_rng(_SEED).integers(len(ratios), size=(_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[samples], axis=1), [_OUTSIDE / 2, 100 - _OUTSIDE / 2])
    return Interval(float(np.median(ratios)), float(low), float(high))
