"""Layers 0 and 1: the rules as algebra, and on half a million draws; then whole verdicts on a few thousand."""

from __future__ import annotations

import pytest
import torch

from exactness import algebra, kernel, verdicts
from tandem.core import rules
from tandem.core.noise import uniforms
from tandem.core.types import Rule


def test_accepted_and_residual_mass_are_p() -> None:
    algebra.check()


def test_the_test_is_monotone_in_u() -> None:
    """What the bisection of the algebra rests on."""
    generator = torch.Generator().manual_seed(2)
    u = torch.rand(2_000, generator=generator, dtype=torch.float64).sort().values
    for _ in range(50):
        p, q = torch.rand(2, generator=generator, dtype=torch.float64) + 1e-3
        passed = rules.is_accepted(u, p.expand_as(u), q.expand_as(u)).int()
        assert bool((passed.diff() <= 0).all())


def test_rows_are_tested_each_with_the_number_of_its_key() -> None:
    generator = torch.Generator().manual_seed(3)
    p, q = torch.rand(2, 40, 9, generator=generator, dtype=torch.float64)
    tokens, keys = torch.randint(9, (40,), generator=generator), list(range(70, 110))
    passed = rules.accept_rows(p, q, tokens, keys)
    for row, token in enumerate(tokens.tolist()):
        u = uniforms([keys[row]], torch.zeros(1, dtype=torch.int64))[0, 0]
        assert bool(passed[row]) == bool(u * q[row, token] < p[row, token])


def test_rejection_rows_follow_the_law() -> None:
    kernel.check()


def test_rejection_rows_pass_as_often_as_they_must() -> None:
    kernel.check_acceptance()


def test_coupled_rows_follow_the_law_and_agree_as_often_as_they_must() -> None:
    kernel.check_coupled()


def test_greedy_accepts_up_to_the_first_token_that_differs() -> None:
    own = rules.pick_greedy(torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 3.0], [0.0, 0.0, 9.0], [1.0, 0.0, 0.0]]))
    assert own == [1, 0, 2, 0]
    blocks = {(): 0, (1,): 1, (2,): 0, (1, 0, 2): 3, (1, 2, 2): 1, (1, 0, 0): 2}
    assert {block: rules.num_agreeing(block, own) for block in blocks} == blocks


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.COUPLED], ids=lambda rule: rule.name)
@pytest.mark.parametrize("name", verdicts.SAMPLINGS)
def test_verdicts_follow_the_law_under_every_parameter(rule: Rule, name: str) -> None:
    verdicts.check(verdicts.SAMPLINGS[name], rule, 1_500 if rule is Rule.REJECTION else 700)
