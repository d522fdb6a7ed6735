"""Which token comes out: the acceptance rules (docs/exactness.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.core.prefix import TokenList
from tandem.core.types import Verdict, Verify


class UnusableLogits(ValueError):
    """Logits that give no distribution: NaN, +inf, or nothing finite."""


def num_agreeing(block: Sequence[int], own: Sequence[int]) -> int:
    """Draft tokens up to the first that differs from the target's own token at its position."""
    agreeing = (x == y for x, y in zip(block, own, strict=False))
    return next((index for index, equal in enumerate(agreeing) if not equal), len(block))


def pick_greedy(logits: torch.Tensor) -> list[int]:
    """The most likely token of each row, the lower id at a tie. logits: [rows, V]. Raises UnusableLogits."""
    best, ids = logits.max(dim=-1)
    if not bool(torch.isfinite(best).all()) or bool(torch.isnan(logits).any()):
        raise UnusableLogits("the model's logits hold NaN, +inf, or nothing finite")
    return [int(token) for token in ids]


def judge(item: Verify, tokens: TokenList, logits: torch.Tensor) -> Verdict:
    """The verdict on `item`'s block. logits: [k + 1, V], row i judges block token i, the last gives the bonus."""
    own = pick_greedy(logits)
    accepted = num_agreeing(item.block.tokens, own)
    return Verdict(accepted, own[accepted])
