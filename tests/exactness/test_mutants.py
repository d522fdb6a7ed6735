"""The gate: every unlawful rule fails its check, every lawful but slow one fails the check of efficiency alone.

The shipped code passes all the same checks, in the other files of this folder and below.
"""

from __future__ import annotations

import pytest

from exactness.mutants import CHECKS, MUTANTS, Mutant
from exactness.tails import LawBroken

UNLAWFUL = [mutant for mutant in MUTANTS if not mutant.lawful]
LAWFUL = [mutant for mutant in MUTANTS if mutant.lawful]


def name_of(mutant: Mutant) -> str:
    return mutant.name


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", UNLAWFUL, ids=name_of)
def test_an_unlawful_rule_is_found_out(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)
    with pytest.raises(LawBroken):
        CHECKS[mutant.dies_by]()


@pytest.mark.parametrize("mutant", LAWFUL, ids=name_of)
def test_a_lawful_but_slow_rule_is_found_out(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)
    CHECKS[mutant.obeys]()
    with pytest.raises(LawBroken):
        CHECKS[mutant.dies_by]()
