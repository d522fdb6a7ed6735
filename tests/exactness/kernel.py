"""The shipped row functions on half a million draws: first, middle and bonus row of a block of two."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from exactness import laws
from exactness.tails import require_law, require_mean
from tandem.core import rules
from tandem.core.distributions import truncate
from tandem.core.noise import Purpose
from tandem.core.types import Sampling, SparseDistribution

N = 500_000
NUM_IDS = len(laws.P)
# The law of each row. The middle row's p lacks two ids that its q has, and the other way round.
TARGET_ROWS = torch.stack([laws.P, laws.P.flip(0), laws.P.roll(3)])
TARGET_ROWS[1, [2, 5]] = 0.0
TARGET_ROWS /= TARGET_ROWS.sum(dim=-1, keepdim=True)
DRAFT_ROWS = torch.stack([laws.Q, laws.P])
DRAFT_ROWS[1, [6]] = 0.0
DRAFT_ROWS /= DRAFT_ROWS.sum(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Outcome:
    """What n blocks gave: tokens [n] that each row would emit if it were reached, and which rows passed their test."""

    tokens: tuple[Tensor, Tensor, Tensor]
    passed: tuple[Tensor, Tensor]


def keys(n: int, row: int, purpose: Purpose) -> Sequence[int]:
    """Of n different seeds, as the rules make them."""
    return _keys(rules.noise_key, n, row, purpose)


@lru_cache(maxsize=32)
def _keys(make: Callable[[int, int, int, Purpose], int], n: int, row: int, purpose: Purpose) -> Sequence[int]:
    return array("Q", [make(seed, 1, 10 + row, purpose) for seed in range(n)])


def run(n: int = N) -> Outcome:
    """The rejection rule, row by row."""
    p = truncate(TARGET_ROWS.log(), Sampling())
    p = p / p.sum(dim=-1, keepdim=True)
    sent = [rules.sparse_q(row) for row in truncate(DRAFT_ROWS.log(), Sampling())]
    q = rules.dense_q(sent, p[:2])
    rows = [_tested_row(p[row].expand(n, -1), q[row].expand(n, -1), sent[row], row) for row in range(2)]
    bonus = rules.race(p[2].expand(n, -1), keys(n, 2, Purpose.DRAFT))
    return Outcome((rows[0][0], rows[1][0], bonus), (rows[0][1], rows[1][1]))


def _tested_row(p: Tensor, q: Tensor, sent: SparseDistribution, row: int) -> tuple[Tensor, Tensor]:
    """Draws, tests and corrects: what comes out, and whether it is the draft's. p, q: [n, V]."""
    n = len(p)
    weights, ids = torch.tensor([sent.weights], dtype=torch.float64), torch.tensor(sent.ids)
    drawn = ids[rules.race_among((weights / weights.sum()).expand(n, -1), ids, keys(n, row, Purpose.DRAFT))]
    passed = rules.accept_rows(p, q, drawn, keys(n, row, Purpose.ACCEPT))
    left = rules.residual(p, q)
    corrected = rules.race(left, keys(n, row, Purpose.RESIDUAL))
    return torch.where(passed, drawn, corrected), passed


def check(n: int = N) -> None:
    """Each row follows p; neighbours are independent, also given that the draft's tokens passed."""
    outcome = run(n)
    names = ("first", "middle", "bonus")
    for name, tokens, law in zip(names, outcome.tokens, TARGET_ROWS, strict=True):
        require_law(torch.bincount(tokens, minlength=NUM_IDS), law, f"{name} row")
    for left, right in ((0, 1), (1, 2)):
        joint = _joint(outcome.tokens[left], outcome.tokens[right])
        require_law(joint, TARGET_ROWS[left][:, None] * TARGET_ROWS[right], f"{names[left]} and {names[right]} row")
    reached = outcome.passed[0] & outcome.passed[1]
    require_law(torch.bincount(outcome.tokens[2][reached], minlength=NUM_IDS), TARGET_ROWS[2], "bonus where reached")


def check_acceptance(n: int = N) -> None:
    """A row passes as often as p and q overlap."""
    for row, passed in enumerate(run(n).passed):
        chance = laws.overlap(TARGET_ROWS[row], DRAFT_ROWS[row])
        require_mean(passed, chance.expand(n), f"row {row} accepted")


def check_coupled(n: int = N) -> None:
    """Two draws with one noise: each follows its own law, and they agree as often as they must. The first row is of n,
    the others, which differ in nothing but position and law, of a fifth.
    """
    for row, (p, q) in enumerate(((laws.P, laws.Q), (laws.P.flip(0), laws.P), (laws.P, laws.P))):
        size = n if row == 0 else n // 5
        noise = keys(size, row, Purpose.COUPLED)
        own, guess = (rules.race(law.expand(size, -1), noise) for law in (p, q))
        require_law(torch.bincount(own, minlength=NUM_IDS), p, f"coupled, row {row}, target")
        require_law(torch.bincount(guess, minlength=NUM_IDS), q, f"coupled, row {row}, draft")
        require_mean(own == guess, laws.agreement(p, q).expand(size), f"coupled, row {row}, agreement")


def _joint(left: Tensor, right: Tensor) -> Tensor:
    return torch.bincount(left * NUM_IDS + right, minlength=NUM_IDS**2).view(NUM_IDS, NUM_IDS)
