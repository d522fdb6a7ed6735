"""Accepted mass + residual mass = p, to 1e-12, from the shipped functions and without a single draw."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from exactness.tails import require
from tandem.core import distributions, rules
from tandem.core.types import Sampling, SparseDistribution

TOLERANCE = 1e-12
_BITS = 52  # of the uniform numbers; number m of them is (m + 1/2) / 2^52


def acceptance(p_x: Tensor, q_x: Tensor) -> Tensor:
    """Of the 2^52 numbers u can be, the share that the shipped test accepts: bisected, as the test is monotone in u."""
    low = torch.zeros_like(p_x, dtype=torch.int64)  # numbers below are accepted
    high = torch.full_like(low, 1 << _BITS)  # numbers from here on are not
    for _ in range(_BITS + 1):
        middle = (low + high) // 2
        passed = rules.is_accepted((middle.double() + 0.5) * 2.0**-_BITS, p_x, q_x) & (low < high)
        low, high = torch.where(passed, middle + 1, low), torch.where(passed, high, middle)
    return low.double() * 2.0**-_BITS


def emitted(p: Tensor, sent: SparseDistribution) -> Tensor:
    """The law of the token that comes out at a position where one of `sent` was drawn and tested. p: [V]."""
    drawn = torch.zeros_like(p)
    weights = torch.tensor(sent.weights, dtype=torch.float64)
    drawn[torch.tensor(sent.ids)] = weights / weights.sum()
    q = rules.dense_q([sent], p[None])
    accepted = drawn * acceptance(p, q[0])
    left = rules.residual(p[None], q)[0]
    if not bool(left.any()):  # then the shipped rule accepts whatever came
        return drawn
    return accepted + (drawn - accepted).sum() * left / left.sum()


def check(num_cases: int = 1_000) -> None:
    generator = random.Random(20)
    for case in range(num_cases):
        p, sent = _case(case, generator)
        off = float((emitted(p, sent) - p).abs().max())
        require(off <= TOLERANCE, f"case {case}: {off:.1e} off, p = {p.tolist()}, q = {sent}")


def _case(case: int, generator: random.Random) -> tuple[Tensor, SparseDistribution]:
    """p as the target makes it and q as a draft sends it; every eighth case is of one of the kinds of `_special`."""
    size = generator.randint(2, 64)
    p, q = _weights(size, generator), _weights(size, generator)
    if case % 2 == 0:
        p, q = _special(case // 2 % len(_SPECIAL), p, q, generator)
    scores = torch.tensor([p, q], dtype=torch.float64).log()
    processed = distributions.truncate(scores, Sampling())
    return processed[0] / processed[0].sum(), rules.sparse_q(processed[1])


def _weights(size: int, generator: random.Random) -> list[float]:
    """From nearly uniform to nearly one-hot."""
    shape = generator.choice([0.05, 0.3, 1.0, 5.0])
    return [generator.gammavariate(shape, 1.0) + 1e-12 for _ in range(size)]


def _special(kind: int, p: list[float], q: list[float], generator: random.Random) -> tuple[list[float], list[float]]:
    return _SPECIAL[kind](p, q, generator.randrange(len(p)))


def _one_hot(weights: list[float], at: int) -> list[float]:
    return [float(index == at) for index in range(len(weights))]


def _without(weights: list[float], keep: range) -> list[float]:
    return [weight if index in keep else 0.0 for index, weight in enumerate(weights)]


_SPECIAL = (
    lambda p, q, at: (p, p),
    lambda p, q, at: (_one_hot(p, at), q),
    lambda p, q, at: (p, _one_hot(q, at)),
    lambda p, q, at: (_one_hot(p, at), _one_hot(q, at)),
    lambda p, q, at: (_one_hot(p, at), _one_hot(q, (at + 1) % len(q))),
    lambda p, q, at: (_without(p, range(max(at, 1))), _without(q, range(max(at, 1), len(q)))),  # disjoint
    lambda p, q, at: (_without(p, range(max(at, 1))), q),
    lambda p, q, at: (p, _without(q, range(max(at, 1)))),
)
