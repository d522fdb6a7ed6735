"""The shipped distributions against the slow reference, on random parameters, prefixes and blocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from exactness import reference
from exactness.drive import new_call
from exactness.tails import require
from tandem.core import distributions
from tandem.core.distributions import Rows
from tandem.core.types import Call, Rule, Sampling

WIDTH = 24  # head rows
NUM_PIECES = 21
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Case:
    """A block of speculated tokens behind a prompt and an output."""

    call: Call
    prompt: list[int]
    output: list[int]
    block: list[int]
    logits: torch.Tensor

    @property
    def rows(self) -> Rows:
        return Rows([*self.prompt, *self.output, *self.block], len(self.prompt) + len(self.output), len(self.prompt))


def random_case(generator: random.Random) -> Case:
    """Few distinct logits, so that ties are common, half of the time; any parameter may be at its default."""

    def ids(least: int, most: int) -> list[int]:
        return [generator.randrange(NUM_PIECES) for _ in range(generator.randint(least, most))]

    block = ids(0, 5)
    spread = 2.0 * torch.randn(
        len(block) + 1, WIDTH, generator=torch.Generator().manual_seed(generator.getrandbits(60))
    )
    logits = spread.double() if generator.random() < 0.5 else spread.double().round()
    call = new_call(Rule.REJECTION, random_sampling(generator), generator.getrandbits(60), 100)
    ends = frozenset(ids(0, 2))
    call = replace(call, end_token_ids=ends, min_tokens=generator.choice([0, 0, 3, 6]))
    return Case(call, ids(1, 6), ids(0, 6), block, logits)


def random_sampling(generator: random.Random) -> Sampling:
    return Sampling(
        temperature=generator.choice([0.0, 1e-5, 0.3, 1.0, 1.0, 1.7]),
        top_p=generator.choice([1.0, 1.0, 0.05, 0.5, 0.9]),
        top_k=generator.choice([0, 0, 1, 5, 12, 50]),
        min_p=generator.choice([0.0, 0.0, 0.05, 0.4]),
        repetition_penalty=generator.choice([1.0, 1.0, 0.7, 1.8]),
        presence_penalty=generator.choice([0.0, 0.0, -0.5, 1.5]),
        frequency_penalty=generator.choice([0.0, 0.0, -0.4, 0.8]),
        logit_bias=generator.choice([{}, {}, {3: 1.5, 7: -2.0}, {1: -100.0, 2: -250.0, 5: 4.0, 22: 100.0, 400: 9.0}]),
    )


def check(num_cases: int = 400) -> None:
    """Scores and truncated weights of every row equal the reference's, which sees one row at a time."""
    generator = random.Random(31)
    for number in range(num_cases):
        case = random_case(generator)
        scores = distributions.score(case.logits, case.call, case.rows, NUM_PIECES)
        weights = distributions.truncate(scores, case.call.sampling)
        for row in range(len(case.block) + 1):
            _require_row(case, row, scores[row], weights[row] / weights[row].sum(), f"case {number}, row {row}")


def _require_row(case: Case, row: int, scores: torch.Tensor, law: torch.Tensor, where: str) -> None:
    call, output = case.call, [*case.output, *case.block[:row]]
    slow = reference.scored(
        case.logits[row].tolist(), call.sampling, case.prompt, output, NUM_PIECES, call.end_token_ids, call.min_tokens
    )
    _require_close(scores, slow, f"{where}: scores under {call.sampling}")
    # truncated from the very same scores, as a last bit of difference would break a tie
    _require_close(law, reference.truncated(scores.tolist(), call.sampling), f"{where}: law under {call.sampling}")


def _require_close(shipped: torch.Tensor, slow: list[float], where: str) -> None:
    expected = torch.tensor(slow, dtype=torch.float64)
    close = (shipped == expected) | ((shipped - expected).abs() <= _TOLERANCE)
    require(bool(close.all()), f"{where}: {shipped.tolist()}, must be {slow}")
