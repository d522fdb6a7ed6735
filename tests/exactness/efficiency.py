"""A rule may be lawful and of no use: how often drafts are accepted and ahead blocks stand has an exact value too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from exactness import laws
from exactness.drive import Judged, Pair, Sequence_, Way
from exactness.tails import require, require_mean
from tandem.core.types import Rule

Chance = Callable[[Tensor, Tensor], Tensor]
ACCEPTANCE: dict[Rule, Chance] = {Rule.REJECTION: laws.overlap, Rule.COUPLED: laws.agreement}
LENGTH = 24


def check(rule: Rule, n: int = 60) -> None:
    """First draft token of each block: sum of min(p, q) under rejection, the agreement of two coupled draws under
    coupled. The guess of the bonus: that agreement under both. Both lookaheads, every context, also behind roll-backs.
    """
    pair = Pair(laws.TARGET, laws.DRAFT)
    p, q = laws.softmax(laws.TARGET), laws.softmax(laws.DRAFT)
    for pipelined in (False, True):
        sequences = pair.generate(_long(rule, pipelined), range(n))
        firsts = [first for sequence in sequences for first in _first_tests(sequence)]
        _require(firsts, ACCEPTANCE[rule](p, q), f"{rule.name}: first draft tokens accepted")
        guesses = [guess for sequence in sequences for guess in _guesses(sequence)]
        require(bool(guesses) == pipelined, "ahead blocks beside verifies")
        if pipelined:
            _require(guesses, laws.agreement(p, q), f"{rule.name}: guesses of the bonus that were right")


def check_same_model(rule: Rule, n: int = 12) -> None:
    """A draft that is the target is accepted whole, and each ahead block of its stands."""
    pair = Pair(laws.TARGET, laws.TARGET)
    for pipelined in (False, True):
        for sequence in pair.generate(_long(rule, pipelined), range(n)):
            for judged in sequence.judged:
                num_drafted = len(judged.item.block.tokens)
                require(judged.verdict.num_accepted == num_drafted, f"{rule.name}: a token of the same model refused")
            require(
                all(is_right for _, is_right in _guesses(sequence)), f"{rule.name}: a guess of the same model wrong"
            )


def _long(rule: Rule, pipelined: bool) -> Way:
    return Way(rule, pipelined, num_tokens=LENGTH, max_tokens=LENGTH + 8)


def _require(events: Sequence[tuple[int, bool]], chances: Tensor, what: str) -> None:
    """`events`: the last token before it, and whether it came so; a sum of martingale differences."""
    contexts = torch.tensor([context for context, _ in events])
    require_mean(torch.tensor([hit for _, hit in events]), chances[contexts], what)


def _first_tests(sequence: Sequence_) -> list[tuple[int, bool]]:
    return [
        (_token(sequence, judged.item.prefix.length - 1), judged.verdict.num_accepted > 0)
        for judged in sequence.judged
        if judged.item.block.tokens
    ]


def _guesses(sequence: Sequence_) -> list[tuple[int, bool]]:
    """For each block accepted whole beside an ahead block: the token before the bonus, and whether the rest of that
    ahead block is what was verified next.
    """
    return [
        (_before_bonus(sequence, judged), following.item.block.round == judged.item.ahead_round)
        for judged, following in zip(sequence.judged, sequence.judged[1:], strict=False)
        if judged.item.ahead_round is not None and judged.verdict.num_accepted == len(judged.item.block.tokens)
    ]


def _before_bonus(sequence: Sequence_, judged: Judged) -> int:
    return _token(sequence, judged.item.prefix.length + len(judged.item.block.tokens) - 1)


def _token(sequence: Sequence_, position: int) -> int:
    assert sequence.ledger is not None
    return sequence.ledger.tokens.ids[position]
