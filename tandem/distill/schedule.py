"""How the time is shared out, and how much of it is gone; stops and restarts do not count. And how chance is."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

WRITING_SHARE = 0.45
WARM_UP_SHARE = 0.03  # of the learning


@dataclass(slots=True)
class Stopwatch:
    """Seconds spent so far; `lap` adds those since the lap before."""

    clock: Callable[[], float]
    spent_s: float = 0.0
    _last_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_s = self.clock()

    def lap(self) -> float:
        now = self.clock()
        self.spent_s, self._last_s = self.spent_s + now - self._last_s, now
        return self.spent_s


def seeded(*key: int) -> torch.Generator:
    """Random numbers that are a function of `key`. The generator itself looks at 32 bits of its seed alone."""
    words = " ".join(map(str, key))
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(words.encode()).digest()[:4]))


def learning_rate(peak: float, progress: float) -> float:
    """A short rise, then a half cosine down to 0; `progress` from 0 to 1."""
    rise = min(1.0, progress / WARM_UP_SHARE)
    return peak * rise * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
