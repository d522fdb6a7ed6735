"""How often draft tokens pass, position by position: what is known of a drafter before its next block is drawn."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

_MEMORY = 0.97  # weight that an observation keeps when the next one comes
_PRIOR_WEIGHT = 8.0  # of the pool's acceptance against a request's own


class Acceptance:
    """Counted up to the first rejection of each block: what lies behind was not tested, and is not known."""

    def __init__(self, prior: Acceptance | float = 0.5) -> None:
        """`prior` is what is expected before anything is observed: others' acceptance, or one chance for all."""
        self._prior = prior
        self._passed: list[float] = []
        self._tested: list[float] = []

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """One verdict on a block of `num_drafted` tokens."""
        num_tested = min(num_accepted + 1, num_drafted)
        missing = num_tested - len(self._tested)
        self._passed += [0.0] * missing
        self._tested += [0.0] * missing
        for position in range(num_tested):
            self._passed[position] = self._passed[position] * _MEMORY + (position < num_accepted)
            self._tested[position] = self._tested[position] * _MEMORY + 1

    def rates(self, num_positions: int) -> list[float]:
        """The chance that the token at each position passes, given that those before it did."""
        if isinstance(self._prior, Acceptance):
            expected, weight = self._prior.rates(num_positions), _PRIOR_WEIGHT
        else:
            expected, weight = [self._prior] * num_positions, 1.0
        counts = zip(self._passed, self._tested, expected, strict=False)
        known = [(passed + weight * chance) / (tested + weight) for passed, tested, chance in counts]
        return known + [known[-1]] * (num_positions - len(known)) if known else expected

    def tokens_per_round(self, longest: int) -> list[float]:
        """Tokens that a round commits on average: [k] with k draft tokens, 1 + A_1 + ... + A_k, k = 0..longest."""
        return list(accumulate(accumulate(self.rates(longest), mul, initial=1.0)))
