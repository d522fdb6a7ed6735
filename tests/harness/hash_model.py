"""A model without weights and without torch: the next token is a hash of all tokens before it, and of the seed.

Every distribution is a single point, so greedy, coupled and rejection give the one text. For workers that must start
in a moment, because they are to be killed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.prefix import digest_of, extend_digest
from tandem.core.types import Drafted, Propose, Rule, SparseDistribution, Verdict, Verify

VOCAB_SIZE = 256


def next_token(tokens: Sequence[int], mistakes: float = 0.0) -> int:
    """The token behind `tokens`; wrong at a share `mistakes` of all prefixes."""
    mixed = extend_digest(digest_of(tokens), 0)
    is_wrong = (mixed >> 32) % 1000 < 1000 * mistakes
    return (mixed + is_wrong) % VOCAB_SIZE


def continuation(prompt: Sequence[int], num_tokens: int, mistakes: float = 0.0) -> list[int]:
    """The text."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, mistakes))
    return tokens[len(prompt) :]


def judge(item: Verify, committed: Sequence[int]) -> Verdict:
    """The verdict on `item.block` behind `committed`."""
    own = continuation(committed, len(item.block.tokens) + 1)
    pairs = enumerate(zip(item.block.tokens, own, strict=False))
    num_accepted = next((index for index, (x, y) in pairs if x != y), len(item.block.tokens))
    # behind a wrong token `own` goes on with the right one, so its entry there is the correction
    return Verdict(num_accepted, own[num_accepted])


def draft(item: Propose, prefix: Sequence[int], mistakes: float) -> Drafted:
    """The whole block in one reply."""
    tokens = tuple(continuation(prefix, item.num_tokens, mistakes))
    is_tested = item.call.rule is Rule.REJECTION
    q = tuple(SparseDistribution((token,), (1.0,)) for token in tokens) if is_tested else ()
    return Drafted(tokens, q, "hash", done=True)
